//! The settings from outside.

use report::Settings;

/// The settings of the window wire. Every part has an environment variable, see [`Settings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `SOFTRNIC_SINGLE_COPY` (0 or 1): with 0 this process neither copies large messages directly between processes
    /// nor lets its peers do so. With 1 it always does, where the kernel permits it; unset, where that is also quicker.
    pub single_copy: bool,
    /// `SOFTRNIC_SINGLE_COPY_ABOVE` (bytes): messages longer than this go by single copy, whatever is quicker.
    /// [`SINGLE_COPY_ABOVE`] with `SOFTRNIC_SINGLE_COPY=1`, and `None` if neither is set.
    pub single_copy_above: Option<u32>,
    /// `SOFTRNIC_PEERS` (`user` or `any`, default `user`): which processes may connect: those of the same user, or
    /// those of any user. Copies between processes of different users always go through the window.
    pub any_user: bool,
}

/// Messages longer than this, in bytes, go by single copy, where that is quicker than through the window: shorter ones
/// never are.
pub const SINGLE_COPY_ABOVE: u32 = 16384;

/// As [`SINGLE_COPY_ABOVE`], between queue pairs of one process.
pub(crate) const SINGLE_COPY_INSIDE: u32 = 1024;

impl Default for Config {
    fn default() -> Self {
        Config { single_copy: true, single_copy_above: None, any_user: false }
    }
}

impl Config {
    /// No message of so few bytes goes by single copy, whatever the peer does.
    #[inline]
    pub(crate) fn least_single_copy(&self) -> u32 {
        self.single_copy_above.map_or(SINGLE_COPY_INSIDE, |above| above.min(SINGLE_COPY_INSIDE))
    }

    /// The settings that the environment asks for.
    pub fn of(settings: &Settings) -> Self {
        let always = (settings.single_copy == Some(true)).then_some(SINGLE_COPY_ABOVE);
        Config {
            single_copy: settings.single_copy != Some(false),
            single_copy_above: settings.single_copy_above.or(always),
            any_user: settings.any_user,
        }
    }
}
