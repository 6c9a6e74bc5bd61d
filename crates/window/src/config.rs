//! What can be set from outside.

/// Settings of the window wire. Every one has an environment variable, read once by [`Config::from_env`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `SOFTRNIC_SINGLE_COPY` (0 or 1): with 0 this process neither copies large messages directly between processes
    /// nor lets its peers do so. With 1 it always does, where the kernel permits it; unset, where that is also quicker.
    pub single_copy: bool,
    /// `SOFTRNIC_SINGLE_COPY_ABOVE` (bytes): messages longer than this go by single copy, whatever is quicker.
    /// [`SINGLE_COPY_ABOVE`] with `SOFTRNIC_SINGLE_COPY=1`, and `None` if neither is set.
    pub single_copy_above: Option<u32>,
    /// `SOFTRNIC_PEERS` (`user` or `any`, default `user`): whose processes may connect: those of the same user, or
    /// anybody's. Copies between processes of different users always go through the window.
    pub any_user: bool,
}

/// Messages longer than this, in bytes, go by single copy, where that is quicker than through the window: shorter ones
/// never are.
pub const SINGLE_COPY_ABOVE: u32 = 16384;

impl Default for Config {
    fn default() -> Self {
        Config { single_copy: true, single_copy_above: None, any_user: false }
    }
}

impl Config {
    /// The settings that the environment asks for. A value that makes no sense counts as not set.
    pub fn from_env() -> Self {
        Self::from_lookup(report::setting_text)
    }

    pub(crate) fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Self {
        let default = Config::default();
        let (single_copy, always) = match get("SOFTRNIC_SINGLE_COPY").as_deref() {
            Some("0") => (false, None),
            Some("1") => (true, Some(SINGLE_COPY_ABOVE)),
            _ => (default.single_copy, default.single_copy_above),
        };
        Config {
            single_copy,
            single_copy_above: get("SOFTRNIC_SINGLE_COPY_ABOVE").and_then(|v| v.trim().parse().ok()).or(always),
            any_user: get("SOFTRNIC_PEERS").map_or(default.any_user, |v| v == "any"),
        }
    }
}
