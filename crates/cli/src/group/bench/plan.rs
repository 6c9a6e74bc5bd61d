//! What is measured, in which order.

use std::time::Duration;

use group::Operation;
use rustix::process::Signal;

use super::Options;
use super::beside;
use super::row::{Bound, Curve, Measured, Results, Row, Setting};
use super::stand::{Folder, REGION, Servers, Stand, copies, nic};
use super::work::{Effort, Own, Work, by_turns, measure};
use crate::bench::machine::Machine;
use crate::bench::pin;
use crate::fixture::{Fixture, text};
use crate::group::place::PlaceOptions;

/// The size and the chain of ratios and loads.
const SIZE: usize = 1024;
const REPLICAS: usize = 3;

/// The window of gMEMCPYs and gCASs.
const OWN_WINDOW: u32 = 16;

/// Microseconds of a slice of the server's own.
const SLICE: u64 = 100;

struct Lists {
    sizes: &'static [usize],
    groups: &'static [usize],
    windows: &'static [u32],
    busy: &'static [u32],
    /// The window of figures over the size.
    wide: u32,
}

const FULL: Lists = Lists {
    sizes: &[128, 512, 1024, 4096, 16 << 10, 64 << 10],
    groups: &[3, 5],
    windows: &[1, 4, 16, 64, 256, 1000, 2000],
    busy: &[0, 4, 8],
    wide: 1000,
};

const QUICK: Lists = Lists { sizes: &[128, 1024], groups: &[3], windows: &[1, 16], busy: &[0, 2], wide: 16 };

struct Run<'a> {
    options: &'a Options,
    stand: Stand,
    fixture: Fixture,
    rows: Vec<Row>,
    bounds: Vec<Bound>,
    posts: u64,
}

/// Measure all.
pub fn run(options: &Options) -> Result<Results, String> {
    let machine = Machine::this();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    let cores = pin::two_cores();
    if let Some((ours, _)) = cores {
        pin::pin(ours);
    }
    let client = cores.map_or("any core".to_owned(), |(ours, _)| format!("core {ours}"));
    let stand = Stand { device: options.device.clone(), core: cores.map(|(_, theirs)| theirs) };
    let fixture = options.device.open()?;
    let mut run = Run { options, stand, fixture, rows: Vec::new(), bounds: Vec::new(), posts: 0 };
    let lists = if options.quick { QUICK } else { FULL };
    run.over_size(&lists)?;
    run.over_window(&lists)?;
    run.own()?;
    run.over_load(&lists)?;
    run.ratios()?;
    run.fairness()?;
    run.applications()?;
    let Run { rows, bounds, posts, .. } = run;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Results { version, machine, load, client, rows, bounds, posts })
}

impl Run<'_> {
    fn effort(&self, window: u32) -> Effort {
        let time = Duration::from_millis(self.options.time);
        let quick = self.options.quick;
        let (least, most) = if quick { (5, Duration::from_millis(500)) } else { (20, Duration::from_secs(10)) };
        Effort { window, pause: Duration::ZERO, time, least, most }
    }

    fn setting(&self, curve: Curve, size: usize, replicas: usize, window: u32, place: &str) -> Setting {
        let (place, applications) = (place.to_owned(), None);
        Setting { curve, size, replicas, window, load: false, busy: 0, pause: 0, place, applications }
    }

    /// The client alone, or beside processes without a priority.
    fn plain(&self) -> String {
        self.stand.core.map_or("any core".into(), |core| format!("core {core}, nice 0"))
    }

    fn keep(&mut self, setting: Setting, measured: Measured) {
        self.rows.push(Row { setting, measured });
    }

    fn take(&mut self, work: &mut dyn Work, setting: Setting) -> Result<(), String> {
        let measured = measure(work, self.effort(setting.window)).map_err(|error| {
            format!("{}, {} bytes, window {}: {error}", setting.curve.name(), setting.size, setting.window)
        })?;
        self.keep(setting, measured);
        Ok(())
    }

    /// All curves for one size and one window.
    fn point(&mut self, servers: &Servers, size: usize, replicas: usize, window: u32) -> Result<(), String> {
        let mut work = nic(&self.fixture, servers, size, window)?;
        self.take(&mut work, self.setting(Curve::Nic, size, replicas, window, &servers.place))?;
        drop(work);
        let (mut work, targets) = self.stand.fan_out(&self.fixture, replicas, size, window)?;
        self.take(&mut work, self.setting(Curve::FanOut, size, replicas, window, &self.plain()))?;
        drop((work, targets));
        self.take(&mut copies(replicas, size)?, self.setting(Curve::Copies, size, replicas, window, "the client's"))
    }

    fn on_path(&mut self, apart: &Servers, files: &Folder, size: usize, window: u32) -> Result<(), String> {
        let (mut work, applications) = self.stand.on_path(&self.fixture, apart, files, size, window)?;
        let place = format!("{}; applications nice 0", apart.place);
        self.take(&mut work, self.setting(Curve::OnPath, size, apart.at.len(), window, &place))?;
        drop((work, applications));
        Ok(())
    }

    fn over_size(&mut self, lists: &Lists) -> Result<(), String> {
        for &replicas in lists.groups {
            let servers = self.stand.server(replicas, &PlaceOptions::default(), false, None)?;
            for &size in lists.sizes {
                self.point(&servers, size, replicas, 1)?;
                let (mut bare, processes) = self.stand.bare(replicas, size, false)?;
                self.take(&mut bare, self.setting(Curve::BareOne, size, replicas, 1, &self.plain()))?;
                drop((bare, processes));
                if replicas == REPLICAS {
                    self.point(&servers, size, replicas, lists.wide)?;
                }
            }
            drop(servers);
            let files = Folder::new()?;
            let apart = self.stand.server(replicas, &PlaceOptions::default(), true, Some(&files))?;
            for &size in lists.sizes {
                self.on_path(&apart, &files, size, 1)?;
                if replicas == REPLICAS {
                    self.on_path(&apart, &files, size, lists.wide)?;
                }
            }
        }
        Ok(())
    }

    fn over_window(&mut self, lists: &Lists) -> Result<(), String> {
        let windows = || lists.windows.iter().copied().filter(|window| ![1, lists.wide].contains(window));
        let servers = self.stand.server(REPLICAS, &PlaceOptions::default(), false, None)?;
        windows().try_for_each(|window| self.point(&servers, SIZE, REPLICAS, window))?;
        drop(servers);
        let files = Folder::new()?;
        let apart = self.stand.server(REPLICAS, &PlaceOptions::default(), true, Some(&files))?;
        windows().try_for_each(|window| self.on_path(&apart, &files, SIZE, window))
    }

    /// Operations of the replicas on their own memory.
    fn own(&mut self) -> Result<(), String> {
        const SLOT: u64 = SIZE as u64;
        // More operations than are under way at a time have bytes of their own: one that meets another waits for it.
        const COPIES: u64 = REGION as u64 / (2 * SLOT);
        const SWAPS: u64 = 64;
        const { assert!(COPIES > OWN_WINDOW as u64) };
        const { assert!(SWAPS > OWN_WINDOW as u64) };
        let copy = |n| {
            let from = n % COPIES * 2 * SLOT;
            Operation::Copy { from, to: from + SLOT, size: SLOT }
        };
        // Regions are zeros at first, so each of them swaps.
        let swap = |n| {
            let (offset, old) = (n % SWAPS * 8, n / SWAPS);
            Operation::CompareSwap { offset, old, new: old + 1, execute: (1 << REPLICAS) - 1 }
        };
        type Op = fn(u64) -> Operation;
        let curves: [(Curve, usize, Op); 2] = [(Curve::Swap, 8, swap), (Curve::Copy, SIZE, copy)];
        for (curve, size, op) in curves {
            for window in [1, OWN_WINDOW] {
                let servers = self.stand.server(REPLICAS, &PlaceOptions::default(), false, None)?;
                let mut work = Own { nic: nic(&self.fixture, &servers, SIZE, window)?, op, begun: 0 };
                self.take(&mut work, self.setting(curve, size, REPLICAS, window, &servers.place))?;
            }
        }
        Ok(())
    }

    /// Priorities of the server, and busy processes on its core.
    fn over_load(&mut self, lists: &Lists) -> Result<(), String> {
        let plain = PlaceOptions::default();
        let places = [
            plain.clone(),
            PlaceOptions { slice: Some(SLICE), ..plain.clone() },
            PlaceOptions { slice: Some(SLICE), nice: Some(-20), ..plain.clone() },
            PlaceOptions { fifo: true, ..plain },
        ];
        let most = lists.busy.last().copied().unwrap_or(0);
        for place in &places {
            let mut p99 = [0.0; 2];
            for &busy in lists.busy {
                for pause in [0, 200] {
                    let servers = self.stand.server(REPLICAS, place, false, None)?;
                    let mut work = nic(&self.fixture, &servers, SIZE, 1)?;
                    let setting = self.setting(Curve::Nic, SIZE, REPLICAS, 1, &servers.place);
                    let processes = self.stand.busy(busy)?;
                    p99[0] = self.loaded(&mut work, Setting { load: true, busy, pause, ..setting })?;
                    drop((work, servers, processes));
                }
                let files = Folder::new()?;
                let apart = self.stand.server(REPLICAS, place, true, Some(&files))?;
                let (mut work, applications) = self.stand.on_path(&self.fixture, &apart, &files, SIZE, 1)?;
                let granted = format!("{}; applications nice 0", apart.place);
                let setting = self.setting(Curve::OnPath, SIZE, REPLICAS, 1, &granted);
                let processes = self.stand.busy(busy)?;
                p99[1] = self.loaded(&mut work, Setting { load: true, busy, ..setting })?;
                drop((work, applications, processes));
                if busy == most && (place.fifo || place.nice.is_some()) {
                    let how = if place.fifo { "SCHED_FIFO" } else { "nice -20 and a slice" };
                    let what = format!("p99 with {busy} busy, server {how} / CPU on the path");
                    let ratio = self.p99_of(&apart.place, busy) / p99[1];
                    self.bounds.push(Bound { what, ratio, bound: 1.0 / 50.0, rounds: vec![ratio] });
                }
            }
        }
        Ok(())
    }

    /// The p99 of gWRITEs without a pause, with the server at a place.
    fn p99_of(&self, place: &str, busy: u32) -> f64 {
        let wanted = |setting: &Setting| {
            setting.curve == Curve::Nic && setting.busy == busy && setting.pause == 0 && setting.place == place
        };
        self.rows.iter().rfind(|row| wanted(&row.setting)).map_or(0.0, |row| row.measured.microseconds.p99)
    }

    fn loaded(&mut self, work: &mut dyn Work, setting: Setting) -> Result<f64, String> {
        // A quantile of few operations says little, and with busy processes an operation may take tens of milliseconds.
        let mut effort = Effort { pause: Duration::from_micros(setting.pause), ..self.effort(1) };
        if !self.options.quick {
            (effort.time, effort.least) = (5 * effort.time, 200);
        }
        let measured = measure(work, effort)?;
        self.keep(setting, measured);
        Ok(measured.microseconds.p99)
    }

    /// Chains of the device beside bare ones, in turns.
    fn ratios(&mut self) -> Result<(), String> {
        let place = PlaceOptions::default();
        let (mut one, mut each) = (Vec::new(), Vec::new());
        let time = Duration::from_millis(self.options.time);
        for round in 0..self.options.rounds_of_bounds() {
            let servers = self.stand.server(REPLICAS, &place, false, None)?;
            let mut work = nic(&self.fixture, &servers, SIZE, 1)?;
            let (mut bare, processes) = self.stand.bare(REPLICAS, SIZE, false)?;
            // The process that spins is on the server's core.
            let before = |way| {
                let signal = if way == 0 { Signal::STOP } else { Signal::CONT };
                processes.iter().try_for_each(|it| it.signal(signal))
            };
            one.push(by_turns([&mut work, &mut bare], time, before)?.ratio);
            drop((work, servers, bare, processes));

            let servers = self.stand.servers(REPLICAS, &place)?;
            let mut work = nic(&self.fixture, &servers, SIZE, 1)?;
            let (mut bare, processes) = self.stand.bare(REPLICAS, SIZE, true)?;
            let pairs = by_turns([&mut work, &mut bare], time, |_| Ok(()))?;
            let [ours, limit] = pairs.ways;
            if round < self.options.rounds {
                let setting = self.setting(Curve::NicEach, SIZE, REPLICAS, 1, &servers.place);
                self.keep(setting, ours);
                let setting = self.setting(Curve::BareEach, SIZE, REPLICAS, 1, &self.plain());
                self.keep(setting, limit);
            }
            drop((work, servers, bare, processes));
            each.push(pairs.ratio);
        }
        self.bounds.push(bound("p50, one server of 3 / a bare chain in one process that spins", 10.0, one));
        self.bounds.push(bound("p50, 3 servers / a bare chain of 3 eventfds", 1.5, each));
        Ok(())
    }

    /// An ordinary queue pair, alone and beside a loop of ENABLEs of its peer, in turns.
    fn fairness(&mut self) -> Result<(), String> {
        let mut ratios = [Vec::new(), Vec::new()];
        for _ in 0..self.options.rounds {
            let mut times = Vec::new();
            for (curve, looping) in [(Curve::Pair, false), (Curve::PairBeside, true)] {
                let (mut work, process) = self.stand.exchange(&self.fixture, looping)?;
                let measured = measure(&mut work, self.effort(1))?;
                drop((work, process));
                self.keep(self.setting(curve, beside::SIZE, 1, 1, &self.plain()), measured);
                times.push([measured.microseconds.p50, measured.microseconds.p99]);
            }
            ratios.iter_mut().enumerate().for_each(|(i, ratio)| ratio.push(times[1][i] / times[0][i]));
        }
        for (quantile, rounds) in ["p50", "p99"].into_iter().zip(ratios) {
            let what = format!("{quantile}, message and answer beside a loop of ENABLEs / alone");
            self.bounds.push(bound(&what, 2.0, rounds));
        }
        Ok(())
    }

    /// Applications that run, are stopped, and are killed.
    fn applications(&mut self) -> Result<(), String> {
        let files = Folder::new()?;
        let servers = self.stand.server(REPLICAS, &PlaceOptions::default(), false, Some(&files))?;
        let mut work = nic(&self.fixture, &servers, SIZE, 1)?;
        let mut ratios = [Vec::new(), Vec::new()];
        // The group of `work` is there from here on until the end.
        let before = posted(&servers)?;
        for round in 0..self.options.rounds_of_bounds() {
            let applications = self.stand.applications(REPLICAS, &files)?;
            let running = self.with_applications(&mut work, &servers.place, "running", round)?;
            applications.iter().try_for_each(|it| it.signal(Signal::STOP))?;
            ratios[0].push(self.with_applications(&mut work, &servers.place, "stopped", round)? / running);
            drop(applications);
            ratios[1].push(self.with_applications(&mut work, &servers.place, "killed", round)? / running);
        }
        self.posts = posted(&servers)?.saturating_sub(before);
        let [stopped, killed] = ratios;
        self.bounds.push(bound("p50, applications stopped / running", 1.1, stopped));
        self.bounds.push(bound("p50, applications killed / running", 1.1, killed));
        Ok(())
    }

    fn with_applications(&mut self, work: &mut dyn Work, place: &str, what: &str, round: u32) -> Result<f64, String> {
        let measured = measure(work, self.effort(1))?;
        if round < self.options.rounds {
            let setting = self.setting(Curve::Nic, SIZE, REPLICAS, 1, place);
            self.keep(Setting { applications: Some(what.into()), ..setting }, measured);
        }
        Ok(measured.microseconds.p50)
    }
}

/// Requests that were posted so far on all replicas of a chain.
fn posted(servers: &Servers) -> Result<u64, String> {
    let first = *servers.at.first().ok_or("no server")?;
    Ok(group::status(first).map_err(text)?.iter().map(|hop| hop.posted).sum())
}

fn bound(what: &str, bound: f64, rounds: Vec<f64>) -> Bound {
    let ratio = crate::bench::stats::Spread::of(&rounds).median;
    Bound { what: what.into(), ratio, bound, rounds }
}
