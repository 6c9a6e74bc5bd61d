//! The choice of cases.

use super::case::{Case, Operation, exists};
use super::refuse;
use super::remote::Place;
use super::shape::{Shape, span};
use super::side::{BASE, Caps, Service, Spec};

/// A row of the report: the place of the far side, and the properties of the pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Row {
    /// The place of the far side.
    pub place: Place,
    /// The properties of both sides.
    pub spec: Spec,
    /// The sizes.
    pub extent: Extent,
}

/// A choice of sizes and shapes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Extent {
    /// All sizes and shapes.
    All,
    /// Some.
    Some,
    /// One message of 64 MiB.
    Huge,
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.place, format!("{:?}", self.spec.service).to_uppercase())?;
        if self.spec.srq {
            f.write_str(" SRQ")?;
        }
        if self.spec.events {
            f.write_str(" events")?;
        }
        if self.extent == Extent::Huge { f.write_str(" 64 MiB") } else { Ok(()) }
    }
}

/// Message sizes around every boundary that an implementation may have.
const SIZES: [usize; 19] =
    [0, 1, 7, 8, 63, 64, 65, 255, 256, 1000, 4095, 4096, 4097, 16383, 16384, 16385, 65536, 1 << 20, LARGEST];
/// Fewer sizes, for variants of rows that were tested with all.
const SOME: [usize; 7] = [0, 1, 64, 4097, 16385, 65536, LARGEST];
/// The sizes of a quick run.
const QUICK: [usize; 6] = [0, 1, 64, 4096, 16385, 1 << 20];
/// A size that is not a multiple of anything.
const LARGEST: usize = (3 << 20) + 1;
/// The size of one row.
const HUGE: usize = 64 << 20;

/// All rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let spec =
        |service, srq, events| Spec { service, srq, events, room: BASE + span(LARGEST, super::MOST_ENTRIES) + 4096 };
    for place in [Place::Itself, Place::Neighbour, Place::Process] {
        for (spec, extent) in [
            (spec(Service::Rc, false, false), Extent::All),
            (spec(Service::Rc, true, false), Extent::Some),
            (spec(Service::Rc, false, true), Extent::Some),
            (spec(Service::Uc, false, false), Extent::All),
            (spec(Service::Ud, false, false), Extent::All),
            (spec(Service::Ud, true, false), Extent::Some),
            (spec(Service::Ud, false, true), Extent::Some),
            (spec(Service::Xrc, false, false), Extent::All),
            (spec(Service::Xrc, false, true), Extent::Some),
        ] {
            if spec.service == Service::Xrc && place == Place::Itself {
                continue; // see `exists`
            }
            rows.push(Row { place, spec, extent });
        }
        let huge = Spec { room: HUGE + (64 << 10), ..spec(Service::Rc, false, false) };
        if place == Place::Process {
            rows.push(Row { place, spec: huge, extent: Extent::Huge });
        }
    }
    rows
}

/// The cases of a row.
pub struct Plan {
    /// The row.
    pub row: Row,
    /// The abilities of the device.
    pub caps: Caps,
    /// True for fewer cases.
    pub quick: bool,
}

impl Plan {
    /// The reason why the device cannot do the whole row.
    pub fn impossible(&self) -> Option<&'static str> {
        let Spec { service, srq, .. } = self.row.spec;
        match () {
            () if service == Service::Xrc && !self.caps.xrc => Some("rows with XRC: not in device_cap_flags"),
            () if srq && !self.caps.srq => Some("rows with an SRQ: max_srq is 0"),
            () if self.quick && self.row.extent == Extent::Huge => Some("row of 64 MiB: --quick"),
            () => None,
        }
    }

    /// The cases. `skip` gets the reason and the number of those that the device cannot do.
    pub fn cases(&self, inline: usize, mut skip: impl FnMut(&'static str, usize)) -> Vec<Case> {
        let Row { place, spec, extent } = self.row;
        let mut cases = Vec::new();
        let mut number = 0;
        let mut add = |operation, len, near, remote, inline| {
            // The steps are odd, so that a property that varies with the number does not vary with the shape alone.
            number += 1;
            cases.push(Case { operation, len, near, remote, inline, number: number * 5 + len as u64 % 3 });
        };
        if extent == Extent::Huge {
            for operation in [Operation::Send, Operation::Write, Operation::Read] {
                add(operation, HUGE, Shape::Two, Shape::One, false);
            }
            return cases;
        }
        let sizes: &[usize] = match (self.quick, extent) {
            (true, _) => &QUICK,
            (false, Extent::All) => &SIZES,
            (false, _) => &SOME,
        };
        let datagram = if spec.service == Service::Ud { self.caps.datagram } else { usize::MAX };
        let mut shapes = vec![Shape::One, Shape::Two, Shape::Three, Shape::Many(super::MOST_ENTRIES)];
        if self.quick {
            shapes = vec![Shape::One, Shape::Many(super::MOST_ENTRIES)];
        }
        let all = shapes.len();
        shapes.retain(|shape| shape.entries() <= self.caps.sges);
        let few = all - shapes.len();
        for operation in Operation::ALL {
            if !exists(operation, spec.service, place) {
                continue;
            }
            let missing = self.missing(operation);
            match operation {
                _ if missing.is_some() => skip(missing.unwrap_or_default(), 1),
                Operation::Send | Operation::SendImm | Operation::Write | Operation::WriteImm | Operation::Read => {
                    let fitting = sizes.iter().filter(|len| **len <= datagram);
                    for len in fitting {
                        for (i, near) in shapes.iter().enumerate() {
                            add(operation, *len, *near, shapes[(i + 1) % shapes.len()], false);
                        }
                        if few > 0 {
                            skip("cases with 32 entries: max_sge is less", few);
                        }
                        if *len <= inline && operation != Operation::Read {
                            add(operation, *len, Shape::One, Shape::One, true);
                            add(operation, *len, shapes[shapes.len() - 1], Shape::One, true);
                        }
                    }
                }
                Operation::SendInv => {
                    for len in [0, 64, 5000, 65536] {
                        add(operation, len, Shape::One, Shape::One, false);
                    }
                }
                Operation::CompareSwap | Operation::FetchAdd => {
                    for _ in 0..8 {
                        add(operation, 8, Shape::One, Shape::One, false);
                    }
                }
                // A queue pair that is its own peer fails on both sides at once; the specification does not say which
                // error wins.
                Operation::Invalidate | Operation::Refuse if place == Place::Itself => {}
                Operation::Bind | Operation::Invalidate => {
                    add(operation, 1, Shape::One, Shape::One, false);
                    if self.caps.windows2 {
                        add(operation, 2, Shape::One, Shape::One, false);
                    } else {
                        skip("type 2 windows: not in device_cap_flags", 1);
                    }
                }
                Operation::Refuse if extent == Extent::Some => {}
                Operation::Refuse => {
                    for number in 0..refuse::NAMES.len() {
                        if refuse::needs_atomics(number) && !self.caps.atomics {
                            continue;
                        }
                        add(operation, number, Shape::One, Shape::One, false);
                    }
                }
            }
        }
        cases
    }

    fn missing(&self, operation: Operation) -> Option<&'static str> {
        match operation {
            Operation::SendInv if !self.caps.windows2 => Some("SEND_INV: no type 2 windows in device_cap_flags"),
            Operation::Bind | Operation::Invalidate if !self.caps.windows => {
                Some("BIND_MW, INV: no memory windows in device_cap_flags")
            }
            Operation::CompareSwap | Operation::FetchAdd if !self.caps.atomics => Some("CAS, FAA: atomic_cap is none"),
            _ => None,
        }
    }
}

impl Case {
    /// True if the pair cannot be used afterwards.
    pub fn breaks(&self) -> bool {
        matches!(self.operation, Operation::Invalidate | Operation::Refuse)
    }
}
