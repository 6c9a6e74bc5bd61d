//! The far side, in any place.

use std::rc::Rc;

use super::shape::Piece;
use super::side::{Answer, Service, Side, Spec, Stretch, Task};
use crate::fixture::{DeviceOptions, Endpoint, Fixture};
use crate::link::{Link, Other, Role};

/// The place of the far side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The near side: a queue pair connected to itself.
    Itself,
    /// Another queue pair of this process.
    Neighbour,
    /// A queue pair of another process.
    Process,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Place::Itself => "itself",
            Place::Neighbour => "one process",
            Place::Process => "two processes",
        })
    }
}

/// The carrier of tasks to the far side.
enum Carrier<'a> {
    Here { side: Rc<Side>, pending: Option<Task> },
    There(&'a mut Link),
}

/// A connected pair: the near side, and the way to the far one.
pub struct Pair<'a> {
    /// The near side.
    pub near: Rc<Side>,
    /// The far side's address, region and key.
    pub peer: Endpoint,
    remote: Carrier<'a>,
}

impl<'a> Pair<'a> {
    /// Make and connect both sides.
    pub fn build(
        fixture: &Rc<Fixture>,
        spec: Spec,
        place: Place,
        other: Option<&'a mut Other>,
    ) -> Result<Self, String> {
        let near = Rc::new(Side::build(fixture, spec)?);
        let mut remote = match (place, other) {
            (Place::Itself, _) => Carrier::Here { side: near.clone(), pending: None },
            (Place::Neighbour, _) => Carrier::Here { side: Rc::new(Side::build(fixture, spec)?), pending: None },
            (Place::Process, Some(other)) => Carrier::There(&mut other.link),
            (Place::Process, None) => return Err("there is no other process".into()),
        };
        let peer = match &mut remote {
            Carrier::Here { side, .. } => side.endpoint()?,
            Carrier::There(link) => match ask(link, &Task::Build(spec))? {
                Answer::Endpoint(endpoint) => endpoint,
                other => return Err(format!("an answer out of place: {other:?}")),
            },
        };
        near.connect(&peer)?;
        let mut pair = Pair { near, peer, remote };
        if place != Place::Itself {
            pair.tell(Task::Connect(pair.near.endpoint()?))?;
        }
        Ok(pair)
    }

    /// Have a task done.
    pub fn call(&mut self, task: Task) -> Result<Answer, String> {
        match &mut self.remote {
            Carrier::Here { side, .. } => side.perform(task),
            Carrier::There(link) => ask(link, &task),
        }
    }

    /// Begin a task, which [`Pair::end`] waits for. In the other process it is done in between; in this one, at that
    /// call.
    pub fn begin(&mut self, task: Task) -> Result<(), String> {
        match &mut self.remote {
            Carrier::Here { pending, .. } => {
                *pending = Some(task);
                Ok(())
            }
            Carrier::There(link) => link.send(&task),
        }
    }

    /// Wait for the task that was begun.
    pub fn end(&mut self) -> Result<Answer, String> {
        match &mut self.remote {
            Carrier::Here { side, pending } => side.perform(pending.take().ok_or("nothing was begun")?),
            Carrier::There(link) => link.receive::<Result<Answer, String>>()?,
        }
    }

    /// Have a task done that has no answer.
    pub fn tell(&mut self, task: Task) -> Result<(), String> {
        self.call(task).map(|_| ())
    }

    /// Fill a part of the far region with a pattern.
    pub fn fill(&mut self, offset: usize, len: usize, seed: u64) -> Result<(), String> {
        self.tell(Task::Fill(vec![Stretch { offset, len, seed, start: 0 }]))
    }

    /// Post a far receive.
    pub fn receive(&mut self, wr_id: u64, pieces: Vec<Piece>) -> Result<(), String> {
        self.tell(Task::Receive { wr_id, pieces })
    }

    /// The service of the pair.
    pub fn service(&self) -> Service {
        self.near.spec.service
    }
}

fn ask(link: &mut Link, task: &Task) -> Result<Answer, String> {
    link.send(task)?;
    link.receive::<Result<Answer, String>>()?
}

/// Run the far side in a process of its own.
pub fn serve(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    let fixture = Rc::new(device.open()?);
    let mut side: Option<Side> = None;
    while let Some(task) = link.receive_or_end::<Task>()? {
        let answer = match (task, &side) {
            (Task::Build(spec), _) => {
                // The old side goes first: a device may have few of everything.
                side = None;
                Side::build(&fixture, spec).and_then(|made| {
                    let endpoint = made.endpoint()?;
                    side = Some(made);
                    Ok(Answer::Endpoint(endpoint))
                })
            }
            (task, Some(side)) => side.perform(task),
            (_, None) => Err("nothing is built".into()),
        };
        link.send(&answer)?;
    }
    Ok(())
}

/// Start that process.
pub fn start(device: &DeviceOptions) -> Result<Other, String> {
    Other::start(Role::Selftest, device)
}
