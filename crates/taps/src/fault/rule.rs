//! The decision when a rule strikes: counting, and chances that depend on nothing but the seed, the rule and the count.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::Nanos;

use super::spec::{Fault, Rule};

/// A rule with its counters.
#[derive(Debug)]
pub struct Armed {
    /// The rule itself.
    pub rule: Rule,
    index: u64,
    seen: AtomicU64,
    struck: AtomicU64,
}

/// A number that follows from the seed, the rule's place and a count, evenly spread (splitmix64 of Steele, Lea and
/// Flood).
pub(crate) fn chance(seed: u64, index: u64, count: u64) -> u64 {
    let mut z = seed;
    for part in [index, count] {
        z = (z ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

impl Armed {
    /// A rule that has counted nothing yet. `index`: its place in the specification, by which rules that are alike
    /// differ in their chances.
    pub fn new(rule: Rule, index: usize) -> Self {
        Armed { rule, index: index as u64, seen: AtomicU64::new(0), struck: AtomicU64::new(0) }
    }

    /// Count one more packet or call. If the rule strikes it, the result is its number, counted from 1.
    pub fn strikes(&self, seed: u64, elapsed: Nanos) -> Option<u64> {
        let when = &self.rule.when;
        if self.is_by_time() || when.after.is_some_and(|after| elapsed < after) {
            return None;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = if let Some(n) = when.n {
            (n..n.saturating_add(when.count.unwrap_or(1))).contains(&seen)
        } else if let Some(every) = when.every {
            seen.is_multiple_of(every)
        } else if let Some(p) = when.p {
            // 53 bits, as many as a f64 has: p=1 is always, p=0 never
            ((chance(seed, self.index, seen) >> 11) as f64) < p * (1u64 << 53) as f64
        } else {
            true
        };
        (hit && self.struck.fetch_add(1, Ordering::Relaxed) < self.limit()).then_some(seen)
    }

    /// How often the rule may strike.
    fn limit(&self) -> u64 {
        let when = &self.rule.when;
        let unlimited = when.every.is_some() || when.p.is_some() || matches!(self.rule.fault, Fault::Slow(_));
        match when.count {
            _ if when.n.is_some() => u64::MAX,
            Some(count) => count,
            None if unlimited => u64::MAX,
            None => 1,
        }
    }

    /// How often the rule has struck.
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed).min(self.limit())
    }

    /// The line at the end about a rule that has never struck, so that what happened is not taken for the fault's work.
    /// `what`: the things that the rule counts.
    pub fn idle(&self, what: &str) -> Option<String> {
        let (text, seen) = (&self.rule.text, self.seen.load(Ordering::Relaxed));
        let none = match self.rule.when.after {
            Some(_) if self.is_by_time() => "the process ended before".to_owned(),
            Some(_) => format!("{what} that it looks at, from then on: {seen}"),
            None => format!("{what} that it looks at: {seen}"),
        };
        (self.struck() == 0).then(|| format!("fault {text} has not happened; {none}"))
    }

    /// 64 bits that are always the same for this seed, this rule and its n-th hit.
    pub fn choice(&self, seed: u64, n: u64) -> u64 {
        chance(!seed, self.index, n)
    }

    /// True for faults that come by time alone, without a packet.
    pub fn is_by_time(&self) -> bool {
        let when = &self.rule.when;
        self.rule.fault.is_an_incident()
            && when.after.is_some()
            && when.n.is_none()
            && when.every.is_none()
            && when.p.is_none()
    }

    /// When the fault comes by itself, counted from the device's beginning, if it has not come yet.
    pub fn due(&self) -> Option<Nanos> {
        self.rule.when.after.filter(|_| self.is_by_time() && self.struck.load(Ordering::Relaxed) == 0)
    }

    /// Count anew, in a process that begins with a copy of this rule.
    pub fn begin_anew(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.struck.store(0, Ordering::Relaxed);
    }

    /// Note that the fault has come.
    pub fn came(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
    }
}
