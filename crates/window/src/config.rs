//! What can be set from outside.

use std::env;

/// Settings of the window wire. Every one has an environment variable, read once by [`Config::from_env`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `SOFTRNIC_STRAIGHT` (0 or 1, default 1): copy large messages straight between processes where the kernel
    /// permits it. With 0 this process neither does so nor lets its peers do so.
    pub straight: bool,
    /// `SOFTRNIC_STRAIGHT_ABOVE` (bytes, default 16384): messages longer than this go straight.
    pub straight_above: u32,
    /// `SOFTRNIC_PEERS` (`user` or `any`, default `user`): whose processes may connect: those of the same user, or
    /// anybody's. Copies between processes of different users always go through the window.
    pub any_user: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { straight: true, straight_above: 16384, any_user: false }
    }
}

impl Config {
    /// The settings that the environment asks for. A value that makes no sense counts as not set.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| env::var(name).ok())
    }

    pub(crate) fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Self {
        let default = Config::default();
        Config {
            straight: match get("SOFTRNIC_STRAIGHT").as_deref() {
                Some("0") => false,
                Some("1") => true,
                _ => default.straight,
            },
            straight_above: get("SOFTRNIC_STRAIGHT_ABOVE")
                .and_then(|v| v.trim().parse().ok())
                .unwrap_or(default.straight_above),
            any_user: get("SOFTRNIC_PEERS").map_or(default.any_user, |v| v == "any"),
        }
    }
}
