//! What can be set from outside.

/// Settings of the window wire. Every one has an environment variable, read once by [`Config::from_env`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `SOFTRNIC_STRAIGHT` (0 or 1): with 0 this process neither copies large messages straight between processes nor lets
    /// its peers do so. With 1 it always does, where the kernel permits it; unset, where that is also quicker.
    pub straight: bool,
    /// `SOFTRNIC_STRAIGHT_ABOVE` (bytes): messages longer than this go straight, whatever is quicker. [`STRAIGHT_ABOVE`] with
    /// `SOFTRNIC_STRAIGHT=1`, and `None` if neither is set.
    pub straight_above: Option<u32>,
    /// `SOFTRNIC_PEERS` (`user` or `any`, default `user`): whose processes may connect: those of the same user, or
    /// anybody's. Copies between processes of different users always go through the window.
    pub any_user: bool,
}

/// Messages longer than this, in bytes, go straight, where that is quicker than through the window: shorter ones never are.
pub const STRAIGHT_ABOVE: u32 = 16384;

impl Default for Config {
    fn default() -> Self {
        Config { straight: true, straight_above: None, any_user: false }
    }
}

impl Config {
    /// The settings that the environment asks for. A value that makes no sense counts as not set.
    pub fn from_env() -> Self {
        Self::from_lookup(report::setting_text)
    }

    pub(crate) fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Self {
        let default = Config::default();
        let (straight, always) = match get("SOFTRNIC_STRAIGHT").as_deref() {
            Some("0") => (false, None),
            Some("1") => (true, Some(STRAIGHT_ABOVE)),
            _ => (default.straight, default.straight_above),
        };
        Config {
            straight,
            straight_above: get("SOFTRNIC_STRAIGHT_ABOVE").and_then(|v| v.trim().parse().ok()).or(always),
            any_user: get("SOFTRNIC_PEERS").map_or(default.any_user, |v| v == "any"),
        }
    }
}
