//! Columns of numbers, aligned.

use std::fmt::Display;

use crate::out::say;

/// A table that grows by cells and rows.
pub struct Table {
    rows: Vec<Vec<String>>,
    current: Vec<String>,
}

impl Table {
    /// With a heading.
    pub fn new<'a>(heading: impl IntoIterator<Item = &'a str>) -> Self {
        Table { rows: vec![heading.into_iter().map(str::to_owned).collect()], current: Vec::new() }
    }

    /// The next cell of the row.
    pub fn cell(&mut self, text: impl Display) {
        self.current.push(text.to_string());
    }

    /// Ends the row.
    pub fn end_row(&mut self) {
        self.rows.push(std::mem::take(&mut self.current));
    }

    /// The whole table, a line a row.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
            cells.collect::<Vec<_>>().join("  ")
        };
        self.rows.iter().map(line).collect()
    }

    /// Prints it.
    pub fn print(&self) {
        for line in self.lines() {
            say!("  {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_to_the_right() {
        let mut table = Table::new(["bytes", "us"]);
        table.cell(8);
        table.cell(format_args!("{:.2}", 12.345));
        table.end_row();
        assert_eq!(table.lines(), ["bytes     us", "    8  12.35"]);
    }
}
