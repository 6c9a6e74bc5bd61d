//! The table of figures.

use super::super::case::Bytes;
use super::{Row, What};

/// Print all rows.
pub fn print(rows: &[Row]) {
    for (what, title) in
        [(What::Latency, "Latency in us, one way; persistent: one receive"), (What::Throughput, "Throughput in MB/s")]
    {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.task.what == what).collect();
        if rows.is_empty() {
            continue;
        }
        println!("{title}");
        println!(
            "{:<12}{:>9}{:>12}{:>7}{:>9}  {:<30}{:>10}{:>7}",
            "", "size", "", "CPU %", "direct %", "limit", "", "ratio"
        );
        for row in rows {
            let size = Bytes(row.task.bytes).to_string();
            let direct = row.direct.map(|direct| format!("{direct:.0}")).unwrap_or_default();
            let limit = row.limit_figure.map(|limit| format!("{:.2}", limit.median)).unwrap_or_default();
            let ratio = row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            println!(
                "{:<12}{size:>9}{:>12.2}{:>7.0}{direct:>9}  {:<30}{limit:>10}{ratio:>7}",
                row.task.way.name(),
                row.figure.median,
                row.cpu,
                row.limit.as_deref().unwrap_or_default(),
            );
        }
        println!();
    }
}
