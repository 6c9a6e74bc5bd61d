//! What a group is to reach where that is no bound, and what it has reached.

use super::figure;
use super::row::{Curve, Results, Setting};
use crate::bench::table::Table;

/// A ratio, and the value that it is to reach.
struct Aim {
    what: String,
    found: f64,
    aim: &'static str,
}

/// The window in which many gWRITEs are compared with the CPU on the path.
const WINDOW: u32 = 1000;
/// Their size.
const SIZE: usize = 1024;

/// The aims as a table. A run that has not measured the figures of one does not show it.
pub fn table(results: &Results) -> Table {
    let mut table = Table::new(["ratio", "found", "aim"]);
    for Aim { what, found, aim } in aims(results) {
        table.cell(what);
        table.cell(figure(found));
        table.cell(aim);
        table.end_row();
    }
    table
}

fn aims(results: &Results) -> Vec<Aim> {
    let mut all = Vec::new();
    let most = results.rows.iter().map(|row| row.setting.busy).max().unwrap_or(0);
    let p99 = |busy: u32, place: &str| {
        let wanted = |it: &Setting| it.load && it.busy == busy && it.pause == 0 && it.place == place;
        results.of(Curve::Nic, wanted).next().map(|row| row.measured.microseconds.p99)
    };
    for row in results.of(Curve::Nic, |it| it.load && most > 0 && it.busy == most && it.pause == 0) {
        let place = &row.setting.place;
        if let (Some(loaded), Some(idle)) = (p99(most, place), p99(0, place)) {
            let what = format!("p99 of gWRITEs with {most} busy / none busy, server on {place}");
            all.push(Aim { what, found: loaded / idle, aim: "at most 1.2" });
        }
    }
    let rate = |curve: Curve| {
        let wide = |it: &Setting| !it.load && it.applications.is_none() && (it.window, it.size) == (WINDOW, SIZE);
        results.of(curve, wide).next().map(|row| row.measured.per_second)
    };
    if let (Some(ours), Some(path)) = (rate(Curve::Nic), rate(Curve::OnPath)) {
        let what = format!("gWRITEs a second, window {WINDOW}, {SIZE} bytes: NIC only / CPU on the path");
        all.push(Aim { what, found: ours / path, aim: "at least 5" });
    }
    for (what, aim) in [("one server of 3", "at most 5"), ("3 servers", "at most 1.2")] {
        if let Some(bound) = results.bounds.iter().find(|bound| bound.what.starts_with(&format!("p50, {what} /"))) {
            all.push(Aim { what: bound.what.clone(), found: bound.ratio, aim });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::row::{Bound, Measured, Row};
    use super::*;
    use crate::bench::machine::Machine;
    use crate::group::client::Times;

    fn row(curve: Curve, window: u32, busy: Option<u32>, p99: f64, per_second: f64) -> Row {
        let setting = Setting {
            curve,
            size: SIZE,
            replicas: 3,
            window,
            load: busy.is_some(),
            busy: busy.unwrap_or(0),
            pause: 0,
            place: "core 1".into(),
            applications: None,
        };
        let microseconds = Times { p50: 1.0, p95: 1.0, p99, p99_9: p99, max: p99 };
        Row { setting, measured: Measured { operations: 1, per_second, microseconds } }
    }

    #[test]
    fn aims_are_ratios_of_the_rows_that_they_name() {
        let rows = vec![
            row(Curve::Nic, WINDOW, None, 9.0, 800.0),
            row(Curve::OnPath, WINDOW, None, 9.0, 100.0),
            row(Curve::Nic, 1, Some(0), 4.0, 1.0),
            row(Curve::Nic, 1, Some(8), 6.0, 1.0),
        ];
        let bound = Bound { what: "p50, 3 servers / x".into(), ratio: 0.75, bound: 1.5, rounds: vec![0.75] };
        let results = Results {
            version: String::new(),
            machine: Machine::this(),
            load: String::new(),
            client: String::new(),
            rows,
            bounds: vec![bound],
            posts: 0,
        };
        let found: Vec<_> = aims(&results).into_iter().map(|aim| aim.found).collect();
        assert_eq!(found, [1.5, 8.0, 0.75]);
        let none = Results { rows: Vec::new(), bounds: Vec::new(), ..results };
        assert!(aims(&none).is_empty());
    }
}
