//! The figures.

use serde::{Deserialize, Serialize};

use crate::bench::machine::Machine;
use crate::group::client::Times;

/// What was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// gWRITEs; one server is all replicas.
    Nic,
    /// gWRITEs; a server for each replica.
    NicEach,
    /// gMEMCPYs; one server is all replicas.
    Copy,
    /// gCASs; one server is all replicas.
    Swap,
    /// The application of each replica sends the bytes on; one server has all replicas.
    OnPath,
    /// The client WRITEs to each replica.
    FanOut,
    /// memcpy to each replica's memory, by the client.
    Copies,
    /// Messages to an ordinary queue pair that answers them.
    Pair,
    /// Such messages, with a loop of ENABLEs beside that queue pair.
    PairBeside,
    /// A process that spins copies along the chain.
    BareOne,
    /// A process for each replica copies, woken by an eventfd.
    BareEach,
}

impl Curve {
    /// The name in tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Curve::Nic => "NIC only, one server",
            Curve::NicEach => "NIC only, a server each",
            Curve::Copy => "NIC only, gMEMCPY",
            Curve::Swap => "NIC only, gCAS",
            Curve::OnPath => "CPU on the path",
            Curve::FanOut => "client fan-out",
            Curve::Copies => "plain copies",
            Curve::Pair => "message and answer",
            Curve::PairBeside => "message and answer, beside a loop of ENABLEs",
            Curve::BareOne => "bare chain, spinning",
            Curve::BareEach => "bare chain, eventfds",
        }
    }
}

/// How a figure came about.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setting {
    pub curve: Curve,
    pub size: usize,
    pub replicas: usize,
    pub window: u32,
    /// True for the comparison of priorities and loads.
    pub load: bool,
    /// Busy processes on the replicas' core.
    pub busy: u32,
    /// Microseconds between an operation and the next one.
    pub pause: u64,
    /// Core and priority of what is on the path, as the system granted them.
    pub place: String,
    /// What the replicas' applications do, where there are any beside the path.
    pub applications: Option<String>,
}

/// What came out.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub operations: u64,
    pub per_second: f64,
    pub microseconds: Times,
}

/// A figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    pub setting: Setting,
    #[serde(flatten)]
    pub measured: Measured,
}

/// A ratio that is to stay below a bound.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bound {
    pub what: String,
    pub ratio: f64,
    pub bound: f64,
    /// The ratio of each round.
    pub rounds: Vec<f64>,
}

/// All of one run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    pub version: String,
    pub machine: Machine,
    /// Processes that wanted a processor at the beginning (/proc/loadavg).
    pub load: String,
    pub client: String,
    pub rows: Vec<Row>,
    pub bounds: Vec<Bound>,
    /// Requests that were posted on the replicas after set-up, over the gWRITEs beside applications.
    pub posts: u64,
}

impl Results {
    /// The requests that were posted, as a sentence.
    pub fn posted(&self) -> String {
        format!("Requests that were posted on the replicas after set-up, beside applications: {}.", self.posts)
    }

    /// The rows of a curve, for a table or a plot.
    pub fn of(&self, curve: Curve, wanted: impl Fn(&Setting) -> bool) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.setting.curve == curve && wanted(&row.setting))
    }
}
