//! The parser of fault specifications: `drop:n=100;delay:t=5ms,p=0.1;seed=42`.

use std::fmt;
use std::str::FromStr;

use verbs::Errno;
use wire::Nanos;

use super::calls::CALLS;
use super::spec::{DeviceFault, FAULTS, Fault, Key, Only, Op, Pattern, Rule, Spec, WHEN, When};

/// An error in a specification, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The number of bytes in front of the error.
    pub at: usize,
    /// The error, and what would be right.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault specification, character {}: {}", self.at + 1, self.message)
    }
}

impl std::error::Error for ParseError {}

type Result<T> = std::result::Result<T, ParseError>;

/// A piece of the text, with its place.
#[derive(Clone, Copy)]
struct Piece<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Piece<'a> {
    /// The piece without the spaces around it.
    fn trimmed(self) -> Self {
        let start = self.text.trim_start();
        Piece { at: self.at + self.text.len() - start.len(), text: start.trim_end() }
    }

    fn split(self, separator: char) -> impl Iterator<Item = Piece<'a>> {
        let mut at = self.at;
        self.text.split(separator).map(move |text| {
            let piece = Piece { at, text };
            at += text.len() + separator.len_utf8();
            piece.trimmed()
        })
    }

    /// The two parts at the first separator.
    fn cut(self, separator: char) -> Option<(Self, Self)> {
        let (left, right) = self.text.split_once(separator)?;
        let behind = Piece { at: self.at + left.len() + separator.len_utf8(), text: right };
        Some((Piece { at: self.at, text: left }.trimmed(), behind.trimmed()))
    }

    fn fail<T>(self, message: impl Into<String>) -> Result<T> {
        Err(ParseError { at: self.at, message: message.into() })
    }

    fn number(self, what: &str) -> Result<u64> {
        let parsed = match self.text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => self.text.parse(),
        };
        parsed.or_else(|_| self.fail(format!("{what} is a number, not '{}'", self.text)))
    }

    fn at_least_one(self, what: &str) -> Result<u64> {
        match self.number(what)? {
            0 => self.fail(format!("{what} is at least 1")),
            n => Ok(n),
        }
    }

    fn time(self) -> Result<Nanos> {
        let digits = self.text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.text.len());
        let (number, unit) = self.text.split_at(digits);
        let scale = match unit {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return self.fail(format!("'{}' is no time: a number and ns, us, ms or s, as in 5ms", self.text)),
        };
        match number.parse::<f64>() {
            // A year and more is a mistake of typing, and would overflow.
            Ok(n) if n * scale < 3e16 => Ok((n * scale) as Nanos),
            _ => self.fail(format!("'{}' is no time: a number and ns, us, ms or s, as in 5ms", self.text)),
        }
    }

    fn probability(self) -> Result<f64> {
        match self.text.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
            _ => self.fail(format!("p is a probability from 0 to 1, not '{}'", self.text)),
        }
    }

    fn op(self) -> Result<Op> {
        match Op::ALL.iter().find(|(name, _)| *name == self.text) {
            Some((_, op)) => Ok(*op),
            None => {
                self.fail(format!("unknown op '{}'; there are {}", self.text, names(Op::ALL.iter().map(|(n, _)| *n))))
            }
        }
    }

    fn call(self) -> Result<Pattern> {
        let pattern = Pattern(self.text.to_owned());
        if CALLS.iter().any(|(call, _)| pattern.covers(call)) {
            return Ok(pattern);
        }
        self.fail(format!(
            "no function '{}' that could fail; names are as ibv_reg_mr, rdma_connect, ibv_create_*",
            self.text
        ))
    }

    fn errno(self) -> Result<Errno> {
        let number = || self.text.parse::<i32>().ok().filter(|n| (1..4096).contains(n)).map(Errno);
        match super::errnos::number(self.text).or_else(number) {
            Some(errno) => Ok(errno),
            None => self.fail(format!("unknown errno '{}'; a name as ENOMEM or a number", self.text)),
        }
    }
}

fn names<T: fmt::Display>(list: impl Iterator<Item = T>) -> String {
    list.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Spec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Spec> {
        let mut spec = Spec::default();
        for item in (Piece { at: 0, text }).split(';').filter(|item| !item.text.is_empty()) {
            match item.cut('=') {
                Some((name, value)) if name.text == "seed" => spec.seed = Some(value.number("the seed")?),
                _ => spec.rules.push(rule(item)?),
            }
        }
        if spec.rules.is_empty() {
            return Piece { at: text.len(), text: "" }
                .fail(format!("no fault; there are {}", names(FAULTS.iter().map(|about| about.name))));
        }
        Ok(spec)
    }
}

/// The values of a rule's keys.
#[derive(Default)]
struct Said {
    when: When,
    only: Only,
    lasts: Option<Nanos>,
    t: Option<Nanos>,
    by: Option<u64>,
    call: Option<Pattern>,
    errno: Option<Errno>,
}

fn rule(item: Piece<'_>) -> Result<Rule> {
    let (name, keys) = match item.cut(':') {
        Some((name, keys)) => (name, Some(keys)),
        None => (item, None),
    };
    let Some(about) = FAULTS.iter().find(|about| about.name == name.text) else {
        return name.fail(format!(
            "unknown fault '{}'; there are {}, and seed=N",
            name.text,
            names(FAULTS.iter().map(|about| about.name))
        ));
    };
    let mut said = Said::default();
    let mut seen = Vec::new();
    for pair in keys.into_iter().flat_map(|keys| keys.split(',')) {
        let allowed = || names(WHEN.iter().chain(about.keys));
        let Some((key, value)) = pair.cut('=') else {
            return pair.fail(format!("'{}' is no key=value; {} has {}", pair.text, about.name, allowed()));
        };
        let known = Key::ALL.iter().find(|(name, _)| *name == key.text).map(|(_, key)| *key);
        let Some(known) = known.filter(|key| WHEN.contains(key) || about.keys.contains(key)) else {
            return key.fail(format!("{} has no '{}'; it has {}", about.name, key.text, allowed()));
        };
        if seen.contains(&known) {
            return key.fail(format!("{} twice", key.text));
        }
        seen.push(known);
        take(&mut said, known, value)?;
    }
    let fault = fault(name, &mut said)?;
    let when = &said.when;
    if when.n.is_some() as u8 + when.every.is_some() as u8 + when.p.is_some() as u8 > 1 {
        return name.fail("n, every and p exclude each other");
    }
    let any =
        when.n.is_some() || when.every.is_some() || when.p.is_some() || when.after.is_some() || when.count.is_some();
    if !any && !matches!(fault, Fault::Slow(_)) {
        return name.fail(format!("when? {} needs one of {}", about.name, names(WHEN.iter())));
    }
    Ok(Rule { text: item.text.to_owned(), fault, when: said.when, only: said.only, lasts: said.lasts })
}

fn take(said: &mut Said, key: Key, value: Piece<'_>) -> Result<()> {
    match key {
        Key::N => said.when.n = Some(value.at_least_one("n")?),
        Key::Every => said.when.every = Some(value.at_least_one("every")?),
        Key::P => said.when.p = Some(value.probability()?),
        Key::After => said.when.after = Some(value.time()?),
        Key::Count => said.when.count = Some(value.at_least_one("count")?),
        Key::Op => said.only.op = Some(value.op()?),
        Key::Side => {
            said.only.received = match value.text {
                "tx" => false,
                "rx" => true,
                other => return value.fail(format!("side is tx (packets that go) or rx (that come), not '{other}'")),
            }
        }
        Key::Qp => match value.number("qp")? {
            qp @ 0..0x100_0000 => said.only.qp = Some(qp as u32),
            _ => return value.fail("a queue pair number has 24 bits"),
        },
        Key::T => said.t = Some(value.time()?),
        Key::By => said.by = Some(value.at_least_one("by")?),
        Key::For => said.lasts = Some(value.time()?),
        Key::Call => said.call = Some(value.call()?),
        Key::Errno => said.errno = Some(value.errno()?),
    }
    Ok(())
}

/// How long a packet waits at most for others to overtake it, in nanoseconds.
const OVERTAKEN_WITHIN: Nanos = 1_000_000;

fn fault(name: Piece<'_>, said: &mut Said) -> Result<Fault> {
    let needs = |key: Key, example: &str| ParseError {
        at: name.at,
        message: format!("{} needs {key}, as in {}:{example}", name.text, name.text),
    };
    Ok(match name.text {
        "drop" => Fault::Drop,
        "delay" => Fault::Delay(said.t.ok_or_else(|| needs(Key::T, "t=5ms,p=0.1"))?),
        "duplicate" => Fault::Duplicate,
        "reorder" => {
            Fault::Reorder(said.by.unwrap_or(1).min(u32::MAX.into()) as u32, said.t.unwrap_or(OVERTAKEN_WITHIN))
        }
        "corrupt" => Fault::Corrupt,
        "slow" => Fault::Slow(said.t.ok_or_else(|| needs(Key::T, "t=20us"))?),
        "rnr" => {
            said.only.received = true;
            Fault::Rnr
        }
        "qp-error" => Fault::QpError,
        "link-kill" => Fault::LinkKill,
        "reset" => Fault::Reset,
        "stall" => Fault::Stall,
        "half-close" => Fault::HalfClose,
        "errno" => {
            let example = "call=ibv_reg_mr,n=3,errno=ENOMEM";
            let call = said.call.take().ok_or_else(|| needs(Key::Call, example))?;
            Fault::Errno(call, said.errno.ok_or_else(|| needs(Key::Errno, example))?)
        }
        "device-fatal" => Fault::Device(DeviceFault::Fatal),
        "device-removal" => Fault::Device(DeviceFault::Removal),
        "port-down" => Fault::Device(DeviceFault::PortDown),
        "gid-change" => Fault::Device(DeviceFault::GidChange),
        _ => Fault::Device(DeviceFault::AddrChange),
    })
}
