//! A chart over message sizes, both axes logarithmic, as SVG.

use std::fmt::Display;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::case::Bytes;

/// The style of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stroke {
    /// A figure of the device.
    Solid,
    /// A limit.
    Dashed,
    /// Another program's figure.
    Dotted,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The colour: red, green, blue.
    pub color: (u8, u8, u8),
    /// The style.
    pub stroke: Stroke,
    /// The points: bytes, or another quantity of the horizontal axis, and the figure.
    pub points: Vec<(usize, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title above it.
    pub title: String,
    /// The quantity of the vertical axis, and its unit.
    pub vertical: String,
    /// The quantity of the horizontal axis; `None` for bytes of a message.
    pub horizontal: Option<String>,
    /// A small text below the horizontal axis: where and how it was measured.
    pub note: String,
    /// The headings of the legend, each with its lines.
    pub groups: Vec<(String, Vec<Line>)>,
}

const SIZE: (u32, u32) = (1040, 620);
const LEGEND: u32 = 280;
const HEAD: u32 = 44;
const FOOT: u32 = 26;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const PALE: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(205, 205, 205);
const FAINT: RGBColor = RGBColor(236, 236, 236);

impl Chart {
    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.groups.iter().flat_map(|(_, lines)| lines)
    }

    /// The lowest and highest of all figures, and of all sizes; `None` if there is no figure that can be shown.
    fn ranges(&self) -> Option<[(f64, f64); 2]> {
        let points = || self.lines().flat_map(|line| &line.points).filter(|(_, figure)| *figure > 0.0);
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        };
        points().next()?;
        let sizes = range(&mut points().map(|(bytes, _)| (*bytes as f64).log2()));
        let figures = range(&mut points().map(|(_, figure)| figure.log10()));
        Some([sizes, figures])
    }

    /// The logarithms of the sizes, in order, each once.
    fn sizes(&self) -> Vec<f64> {
        let sizes = self.lines().flat_map(|line| &line.points).map(|(bytes, _)| *bytes);
        sizes.collect::<std::collections::BTreeSet<_>>().into_iter().map(|bytes| (bytes as f64).log2()).collect()
    }

    /// The chart as SVG; `None` if there is nothing to show.
    pub fn svg(&self) -> Result<Option<String>, String> {
        let Some([sizes, figures]) = self.ranges() else { return Ok(None) };
        let mut text = String::new();
        self.draw(&mut text, sizes, figures).map_err(|error| format!("cannot draw: {error}"))?;
        Ok(Some(text))
    }

    fn draw(&self, svg: &mut String, sizes: (f64, f64), figures: (f64, f64)) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let at = |size: i32, color: &'static RGBColor| {
            TextStyle::from((FONT, size).into_font()).color(color).pos(Pos::new(HPos::Left, VPos::Center))
        };
        root.draw_text(&self.title, &at(20, &INK), (20, HEAD as i32 / 2))?;
        root.draw_text(&self.note, &at(12, &PALE), (20, (SIZE.1 - FOOT / 2) as i32))?;
        let middle = root.margin(HEAD, FOOT, 0, 0);
        let (left, right) = middle.split_horizontally(SIZE.0 - LEGEND);

        // Some space around the figures.
        let horizontal = (sizes.0 - 0.3, sizes.1.max(sizes.0 + 1.0) + 0.3);
        let vertical = (figures.0 - 0.08, figures.1.max(figures.0 + 0.5) + 0.08);
        let mut chart =
            ChartBuilder::on(&left).margin(8).x_label_area_size(46).y_label_area_size(66).build_cartesian_2d(
                ticks_of_sizes(horizontal, &self.sizes(), self.horizontal.is_none()),
                ticks_of_figures(vertical),
            )?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(FAINT)
            .axis_style(INK)
            .x_desc(self.horizontal.as_deref().unwrap_or("Bytes of a message"))
            .y_desc(&self.vertical)
            .label_style((FONT, 13).into_font().color(&INK))
            .axis_desc_style((FONT, 14).into_font().color(&INK))
            .draw()?;
        for line in self.lines() {
            let color = RGBColor(line.color.0, line.color.1, line.color.2);
            let points = || {
                let shown = line.points.iter().filter(|(_, figure)| *figure > 0.0);
                shown.map(|(bytes, figure)| ((*bytes as f64).log2(), figure.log10()))
            };
            match line.stroke {
                Stroke::Solid => chart.draw_series(LineSeries::new(points(), color.stroke_width(2)))?,
                Stroke::Dashed => chart.draw_series(DashedLineSeries::new(points(), 9, 5, color.stroke_width(2)))?,
                Stroke::Dotted => chart.draw_series(DashedLineSeries::new(points(), 2, 4, color.stroke_width(2)))?,
            };
            if line.stroke != Stroke::Dashed {
                chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
            }
        }
        let mut y = 20;
        for (heading, lines) in &self.groups {
            if lines.iter().all(|line| line.points.is_empty()) {
                continue;
            }
            right.draw_text(heading, &at(14, &INK), (8, y))?;
            y += 24;
            for line in lines.iter().filter(|line| !line.points.is_empty()) {
                let color = RGBColor(line.color.0, line.color.1, line.color.2);
                let sample = |from: i32, to: i32| PathElement::new(vec![(from, y), (to, y)], color.stroke_width(2));
                match line.stroke {
                    Stroke::Solid => right.draw(&sample(12, 44))?,
                    Stroke::Dashed => [12, 26].iter().try_for_each(|x| right.draw(&sample(*x, x + 9)))?,
                    Stroke::Dotted => (0..6).try_for_each(|i| right.draw(&sample(12 + 6 * i, 14 + 6 * i)))?,
                }
                if line.stroke != Stroke::Dashed {
                    right.draw(&Circle::new((28, y), 3, color.filled()))?;
                }
                right.draw_text(&line.name, &at(13, &INK), (54, y))?;
                y += 22;
            }
            y += 14;
        }
        root.present()?;
        Ok(())
    }
}

/// A logarithmic axis: its values are the logarithms.
struct Axis {
    range: RangedCoordf64,
    bold: Vec<f64>,
    light: Vec<f64>,
    label: fn(f64) -> String,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.light.clone() } else { self.bold.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.range()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

/// The sizes that were measured have labels, where there is room for them; otherwise every second power of two.
fn ticks_of_sizes((low, high): (f64, f64), sizes: &[f64], bytes: bool) -> Axis {
    let powers: Vec<f64> = (low.ceil() as i32..=high.floor() as i32).map(f64::from).collect();
    let bold = match sizes.windows(2).all(|pair| pair[1] - pair[0] >= 1.5) {
        true => sizes.to_vec(),
        false => powers.iter().step_by(if powers.len() > 12 { 2 } else { 1 }).copied().collect(),
    };
    let label = match bytes {
        true => |power: f64| Bytes(2f64.powf(power).round() as usize).to_string(),
        false => |power: f64| (2f64.powf(power).round() as usize).to_string(),
    };
    Axis { range: (low..high).into(), bold, light: powers, label }
}

/// Powers of ten have labels, and 2 and 5 times them where there are few; each unit between has a faint line.
fn ticks_of_figures((low, high): (f64, f64)) -> Axis {
    let inside = |value: &f64| (low..=high).contains(value);
    let decades = low.floor() as i32..=high.ceil() as i32;
    let of = |factors: &[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|power| factors.iter().map(move |factor| f64::from(power) + factor.log10()));
        all.filter(inside).collect()
    };
    let bold = if high - low > 3.5 { of(&[1.0]) } else { of(&[1.0, 2.0, 5.0]) };
    let light = of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    Axis { range: (low..high).into(), bold, light, label: |power| plain(10f64.powf(power)).to_string() }
}

/// A number of an axis, without more digits than it needs.
fn plain(value: f64) -> impl Display {
    let digits = if value < 0.9 { (-value.log10() - 0.01).ceil() as usize } else { 0 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(usize, f64)>) -> Chart {
        let line = |stroke| Line { name: "a < b & c".into(), color: (0, 114, 178), stroke, points: points.clone() };
        let groups = [Stroke::Solid, Stroke::Dashed, Stroke::Dotted].map(|s| (format!("{s:?}"), vec![line(s)])).into();
        Chart { title: "Title <1>".into(), vertical: "us".into(), horizontal: None, note: "note".into(), groups }
    }

    #[test]
    fn a_chart_is_well_formed_and_says_what_it_shows() {
        let svg = chart(vec![(1, 0.1), (64, 0.2), (1 << 20, 100.0)]).svg().unwrap().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<String> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .map(|node| node.text().unwrap_or_default().trim().to_owned())
            .collect();
        for wanted in
            ["Title <1>", "us", "note", "Bytes of a message", "a < b & c", "Solid", "64 B", "1 MiB", "0.1", "100"]
        {
            assert!(texts.iter().any(|text| text == wanted), "{wanted}: {texts:?}");
        }
    }

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        assert_eq!(chart(Vec::new()).svg().unwrap(), None);
        assert_eq!(chart(vec![(8, 0.0)]).svg().unwrap(), None);
        let svg = chart(vec![(8, 1.0), (16, 0.0)]).svg().unwrap().unwrap();
        roxmltree::Document::parse(&svg).unwrap();
    }

    #[test]
    fn numbers_of_an_axis() {
        let all = [0.001, 0.05, 0.1, 0.5, 1.0, 20.0, 1000.0].map(|value| plain(value).to_string());
        assert_eq!(all, ["0.001", "0.05", "0.1", "0.5", "1", "20", "1000"]);
    }
}
