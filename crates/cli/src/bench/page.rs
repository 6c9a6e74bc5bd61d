//! The page about performance: made from one run, with its plots beside it.

use std::fmt::Write as _;
use std::path::Path;

use super::plot::{self, Plot};
use super::report;
use super::results::Results;
use super::{migrated, write};

/// The sizes in the tables; the plots have all.
const SIZES: [usize; 8] = [1, 8, 64, 512, 4096, 64 << 10, 1 << 20, 8 << 20];

/// The line below which the page was written by hand. That part stays when the page is made anew.
pub const BY_HAND: &str = "<!-- Below this line the page is written by hand. -->";

/// Write the page, and the plots into the same folder.
pub fn write_page(results: &Results, path: &Path) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let plots = plot::write_all(results, folder)?;
    let old = std::fs::read_to_string(path).unwrap_or_default();
    write(path, &page(results, &plots, by_hand(&old)))
}

/// The part of the page that was written by hand.
pub fn by_hand(old: &str) -> &str {
    old.split_once(BY_HAND).map_or("\n", |(_, rest)| rest)
}

fn page(results: &Results, plots: &[Plot], by_hand: &str) -> String {
    let mut page = String::new();
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    line("# Performance\n");
    line(
        "Made from one run of `softrnic bench --page FILE`, which measures the device through its public C functions \
         and, in",
    );
    line(
        "the same run and on the same cores, what the machine itself can do. On another machine the figures are \
         others; the",
    );
    line("ratios less so. `docs/benchmark.md` says how it measures.\n");
    if migrated() {
        line(
            "All programs ran with `SOFTRNIC_MIGRATE=1`: registered memory lay where peers map it \
             (`docs/migrate.md`).\n",
        );
    }
    line(&format!("- Machine: {}.", results.machine));
    line(&format!("- softrnic {}, {}.", results.version, report::place(results)));
    line(&format!("- {}", report::method(results)));
    let mut parts = report::parts(results, |bytes| SIZES.contains(&bytes));
    // The part that most readers look for comes first.
    parts.rotate_right(1);
    let mut plots = plots.iter();
    for (number, part) in parts.iter().enumerate() {
        line(&format!("\n## {}\n", part.heading));
        part.intro.iter().for_each(|text| line(text));
        line("");
        part.table.markdown().iter().for_each(|row| line(row));
        if !part.notes.is_empty() {
            line("");
            part.notes.iter().for_each(|note| line(&format!("- {note}")));
        }
        if number == 0 {
            for plot in plots.by_ref() {
                line(&format!("\n![{}]({})", plot.about, plot.file));
            }
        }
    }
    if !results.missing.is_empty() {
        line("\n## What was not measured\n");
        results.missing.iter().for_each(|missing| line(&format!("- {missing}")));
    }
    let _ = write!(page, "\n{BY_HAND}{by_hand}");
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::limits::Limit;
    use crate::bench::results::sample;

    #[test]
    fn the_page_has_every_part_and_no_more_than_the_machine() {
        let results = sample();
        let page = page(&results, &plot::plots(&results), by_hand(""));
        for part in report::parts(&results, |_| true) {
            assert!(page.contains(part.heading), "{}", part.heading);
        }
        assert!(page.contains("latency.svg") && page.contains(&results.machine.processor));
        assert!(!page.contains(&results.setup.library), "where the library lies is nobody's business");
    }

    #[test]
    fn a_shared_core_is_told() {
        let mut results = sample();
        let mut rounds = |limit, rounds: [f64; 3]| {
            let row = results.limits.iter_mut().find(|row| row.limit == limit).unwrap();
            row.rounds = rounds.to_vec();
        };
        rounds(Limit::Work, [1.0, 1.0, 1.0]);
        rounds(Limit::WorkBeside, [1.9, 1.01, 1.7]);
        let told = page(&results, &[], "");
        assert!(told.contains("In 2 of 3 rounds the two processors shared a core"), "{told}");
        assert!(told.contains("up to 1.90 times"), "{told}");
        assert!(!page(&sample(), &[], "").contains("shared a core"));
    }

    #[test]
    fn what_was_written_by_hand_stays() {
        let first = page(&sample(), &[], by_hand(""));
        let edited = format!("{first}\n## What was tried\n\nThis.\n");
        let second = page(&sample(), &[], by_hand(&edited));
        assert_eq!(second, edited);
    }
}
