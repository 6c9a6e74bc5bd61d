//! The model of an adversary. A scenario is one choice of each kind.

use conformance::Random;
use serde::{Deserialize, Serialize};

/// The number of another user, which no user has.
pub const OTHER_UID: u32 = 65533;

/// The adversary as the honest processes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// A process of their user, which may trace them.
    Same,
    /// A process of another user.
    Other,
    /// A process of their user, in a user namespace of its own in which no user has a number.
    UserNamespace,
    /// A process in a network namespace without their names.
    NetNamespace,
    /// A process without a number in their PID namespace.
    PidNamespace,
}

impl Who {
    const ALL: [Who; 5] = [Who::Same, Who::Other, Who::UserNamespace, Who::NetNamespace, Who::PidNamespace];

    /// The command that starts such a process.
    pub fn starter(self) -> &'static [&'static str] {
        match self {
            Who::Same | Who::Other => &[],
            Who::UserNamespace => &["unshare", "--user", "--"],
            Who::NetNamespace => &["unshare", "--user", "--net", "--"],
            Who::PidNamespace => &["unshare", "--user", "--pid", "--fork", "--kill-child", "--"],
        }
    }
}

/// The descriptors in the message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ReceivedFd {
    None,
    /// A valid window.
    Window,
    /// A window that is cut short after it was sent.
    Shrinks,
    Eventfd,
    /// As many descriptors as one message can carry (SCM_MAX_FD of unix(7)).
    Many,
    /// The full end of a pipe.
    Pipe,
    /// A unix socket in which further descriptors lie unread.
    Nested,
    /// A connection whose close takes 0.1 s.
    Lingers,
    /// A connection whose close takes minutes.
    LingersLong,
}

/// The kind of message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Words {
    Nothing,
    Noise,
    Hello,
}

/// The numbers that are written into a window, and into an export table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Marks {
    None,
    /// Odd numbers everywhere, by which every count of copies says that one is under way.
    Odd,
    /// Random numbers.
    Garbage,
    /// Cursors and lengths.
    Counts,
}

/// The names that it holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Names {
    None,
    /// Blocks of QP numbers, in some variants.
    Blocks,
    /// Locks of ports, and blocks of ephemeral ports.
    Ports,
}

/// The behaviour after the first attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// It closes each connection, and goes on.
    Closes,
    /// It keeps its connections.
    Stays,
    /// It connects hundreds of times, as fast as it can.
    Floods,
    /// It is killed.
    Dies,
    /// It is stopped.
    Stops,
}

/// One adversary.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Scenario {
    pub who: Who,
    pub received_fd: ReceivedFd,
    pub words: Words,
    pub marks: Marks,
    pub names: Names,
    pub after: After,
    pub seed: u64,
}

fn one<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

impl Scenario {
    /// A random scenario. The first ones are one of each `who`, so that a short run has all of them; one in three has
    /// everything that it needs to be accepted.
    pub fn draw(random: &mut Random, number: u64) -> Scenario {
        use ReceivedFd as G;
        let remote = number.is_multiple_of(3);
        let who = match Who::ALL.get(number as usize) {
            Some(who) => *who,
            None if remote => one(random, &[Who::Same, Who::Same, Who::UserNamespace, Who::PidNamespace]),
            None => one(random, &Who::ALL),
        };
        let received_fds = [G::None, G::Shrinks, G::Eventfd, G::Many, G::Pipe, G::Nested, G::Lingers, G::LingersLong];
        let words = [Words::Nothing, Words::Noise, Words::Hello, Words::Hello, Words::Hello];
        Scenario {
            who,
            received_fd: if remote || random.below(4) == 0 { G::Window } else { one(random, &received_fds) },
            words: if remote { Words::Hello } else { one(random, &words) },
            marks: one(random, &[Marks::None, Marks::Odd, Marks::Garbage, Marks::Counts]),
            names: one(random, &[Names::None, Names::Blocks, Names::Ports]),
            after: one(random, &[After::Closes, After::Stays, After::Floods, After::Dies, After::Stops]),
            seed: random.next(),
        }
    }
}
