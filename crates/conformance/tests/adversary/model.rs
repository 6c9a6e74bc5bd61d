//! What an adversary can be and do. A scenario is one choice of each.

use conformance::Random;
use serde::{Deserialize, Serialize};

/// Another user's number: one that nobody has.
pub const OTHER_UID: u32 = 65533;

/// Who it is, as the honest processes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// Of their user, and may trace them.
    Same,
    /// Another user.
    Other,
    /// Of their user, in a user namespace of its own in which no user has a number.
    UserNamespace,
    /// Where their names are not.
    NetNamespace,
    /// Without a number in their PID namespace.
    PidNamespace,
}

impl Who {
    const ALL: [Who; 5] = [Who::Same, Who::Other, Who::UserNamespace, Who::NetNamespace, Who::PidNamespace];

    /// What starts such a process.
    pub fn starter(self) -> &'static [&'static str] {
        match self {
            Who::Same | Who::Other => &[],
            Who::UserNamespace => &["unshare", "--user", "--"],
            Who::NetNamespace => &["unshare", "--user", "--net", "--"],
            Who::PidNamespace => &["unshare", "--user", "--pid", "--fork", "--kill-child", "--"],
        }
    }
}

/// What lies in the message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ReceivedFd {
    None,
    /// A window as it should be.
    Window,
    /// A window that is cut short after it was sent.
    Shrinks,
    Eventfd,
    /// As many as one message can carry (SCM_MAX_FD of unix(7)).
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

/// What is said.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Words {
    Nothing,
    Noise,
    Hello,
}

/// What is written into a window, and shown on an export table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Marks {
    None,
    /// Odd numbers everywhere: whatever counts copies says that one is under way.
    Odd,
    /// Anything.
    Garbage,
    /// Cursors and lengths.
    Counts,
}

/// Which names it holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Names {
    None,
    /// Blocks of QP numbers, in some variants.
    Blocks,
    /// Locks of ports, and blocks of ephemeral ports.
    Ports,
}

/// What it does when it has struck for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// Closes each connection, and goes on.
    Closes,
    /// Keeps its connections.
    Stays,
    /// Connects hundreds of times, as fast as it can.
    Floods,
    /// Is killed.
    Dies,
    /// Is stopped.
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
    /// A random one. The first ones are one of each `who`, so that a short run has met them all; one in three has all
    /// it needs to be let in.
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
