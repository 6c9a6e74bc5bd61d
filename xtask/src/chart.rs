//! Charts as SVG: lines over sizes, both axes logarithmic, and bars.

use std::fmt::Write;

/// The colours of lines and bars. They can be told apart without seeing red and green apart (Okabe and Ito).
pub const BLUE: &str = "#0072b2";
pub const RED: &str = "#d55e00";
pub const GREEN: &str = "#009e73";
pub const GREY: &str = "#787878";
pub const BLACK: &str = "#000000";
pub const AMBER: &str = "#e69f00";

const INK: &str = "#282828";
const GRID: &str = "#dddddd";
const WIDTH: f64 = 1040.0;
const LEGEND: f64 = 270.0;
const HEAD: f64 = 44.0;

/// A line over sizes.
pub struct Line {
    pub name: String,
    pub color: &'static str,
    /// A limit of the machine, not a measured way.
    pub is_limit: bool,
    /// Drawn thin.
    pub is_thin: bool,
    /// A size in bytes, and the figure.
    pub points: Vec<(usize, f64)>,
}

/// A bar: its name, its colour, and the figure.
pub struct Bar {
    pub name: String,
    pub color: &'static str,
    pub figure: f64,
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// `x y` are where the text begins, is in its middle, or ends, as `anchor` says.
fn write_text(svg: &mut String, [x, y]: [f64; 2], size: u32, anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-family=\"sans-serif\" font-size=\"{size}\" fill=\"{INK}\" \
         text-anchor=\"{anchor}\">{}</text>",
        escaped(text)
    );
}

fn rule(svg: &mut String, [x1, y1, x2, y2]: [f64; 4], color: &str, more: &str) {
    let _ =
        writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\" {more}/>");
}

fn begin(title: &str, note: &str, height: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    write_text(&mut svg, [20.0, 28.0], 20, "start", title);
    write_text(&mut svg, [20.0, height - 10.0], 12, "start", note);
    svg
}

/// Bytes, in the unit that gives a short number.
pub fn bytes(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

/// A figure of an axis.
fn plain(figure: f64) -> String {
    format!("{}", (figure * 1e6).round() / 1e6)
}

/// The steps 1, 2 and 5 of every power of ten between two figures.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    all.filter(|tick| (low * 0.999..=high * 1.001).contains(tick)).collect()
}

/// A chart of lines over sizes, with the names of its axes. `None`: there is nothing to show.
pub fn lines(title: &str, [horizontal, vertical]: [&str; 2], note: &str, lines: &[Line]) -> Option<String> {
    const HEIGHT: f64 = 600.0;
    let points = || lines.iter().flat_map(|line| &line.points).filter(|(_, figure)| *figure > 0.0);
    let mut sizes: Vec<usize> = points().map(|(size, _)| *size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (first, last) = (*sizes.first()? as f64, *sizes.last()? as f64);
    let low = points().map(|(_, figure)| *figure).fold(f64::INFINITY, f64::min) * 0.8;
    let high = points().map(|(_, figure)| *figure).fold(0.0, f64::max) * 1.25;
    let (left, right, top, bottom) = (80.0, WIDTH - LEGEND, HEAD + 6.0, HEIGHT - 76.0);
    let span = (last / first).log2().max(1.0);
    let at_x = |size: usize| left + 16.0 + (size as f64 / first).log2() / span * (right - left - 32.0);
    let at_y = |figure: f64| bottom - (figure / low).log10() / (high / low).log10() * (bottom - top);
    let mut svg = begin(title, note, HEIGHT);
    for tick in ticks(low, high) {
        rule(&mut svg, [left, at_y(tick), right, at_y(tick)], GRID, "");
        write_text(&mut svg, [left - 8.0, at_y(tick) + 4.0], 13, "end", &plain(tick));
    }
    for size in &sizes {
        rule(&mut svg, [at_x(*size), top, at_x(*size), bottom], GRID, "");
        write_text(&mut svg, [at_x(*size), bottom + 20.0], 13, "middle", &bytes(*size));
    }
    rule(&mut svg, [left, top, left, bottom], INK, "");
    rule(&mut svg, [left, bottom, right, bottom], INK, "");
    write_text(&mut svg, [left.midpoint(right), bottom + 44.0], 14, "middle", horizontal);
    let _ = writeln!(svg, "<g transform=\"translate(20 {:.1}) rotate(-90)\">", top.midpoint(bottom));
    write_text(&mut svg, [0.0, 4.0], 14, "middle", vertical);
    svg.push_str("</g>\n");
    let mut y = HEAD + 20.0;
    for line in lines.iter().filter(|line| line.points.iter().any(|(_, figure)| *figure > 0.0)) {
        let width = if line.is_thin { 1.2 } else { 2.2 };
        let dashes = if line.is_limit { " stroke-dasharray=\"9 5\"" } else { "" };
        let shown = line.points.iter().filter(|(_, figure)| *figure > 0.0);
        let path: Vec<String> =
            shown.map(|(size, figure)| format!("{:.1},{:.1}", at_x(*size), at_y(*figure))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"{dashes}/>",
            path.join(" "),
            line.color
        );
        let style = format!("stroke-width=\"{width}\"{dashes}");
        rule(&mut svg, [right + 14.0, y, right + 46.0, y], line.color, &style);
        if !line.is_limit {
            let own = path.iter().filter_map(|point| point.split_once(','));
            let sample = (format!("{:.1}", right + 30.0), format!("{y:.1}"));
            let all: Vec<(&str, &str)> = own.chain([(sample.0.as_str(), sample.1.as_str())]).collect();
            for (x, y) in all {
                let fill = if line.is_thin { "#ffffff" } else { line.color };
                let _ =
                    writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{fill}\" stroke=\"{}\"/>", line.color);
            }
        }
        write_text(&mut svg, [right + 54.0, y + 4.0], 13, "start", &line.name);
        y += 24.0;
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// A chart of bars, one below the other, on a logarithmic axis with a mark at 1. `legend` names the colours. `None`:
/// there is nothing to show.
pub fn bars(title: &str, horizontal: &str, note: &str, legend: &[(&str, &str)], groups: &[Vec<Bar>]) -> Option<String> {
    let all = || groups.iter().flatten().filter(|bar| bar.figure > 0.0);
    all().next()?;
    let low = all().map(|bar| bar.figure).fold(1.0, f64::min) * 0.8;
    let high = all().map(|bar| bar.figure).fold(1.0, f64::max) * 1.25;
    let (thick, gap, left, right, top) = (15.0, 12.0, 250.0, WIDTH - 60.0, HEAD + 34.0);
    let rows: usize = groups.iter().map(Vec::len).sum();
    let bottom = top + rows as f64 * thick + groups.len() as f64 * gap;
    let at = |figure: f64| left + (figure / low).log10() / (high / low).log10() * (right - left);
    let mut svg = begin(title, note, bottom + 76.0);
    let mut x = left;
    for (name, color) in legend {
        let y = HEAD;
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"14\" height=\"14\" fill=\"{color}\"/>");
        write_text(&mut svg, [x + 20.0, y + 12.0], 13, "start", name);
        x += 50.0 + 7.0 * name.len() as f64;
    }
    for tick in ticks(low, high) {
        rule(&mut svg, [at(tick), top, at(tick), bottom], GRID, "");
        write_text(&mut svg, [at(tick), bottom + 18.0], 13, "middle", &plain(tick));
    }
    let mut y = top + gap / 2.0;
    for group in groups {
        let middle = y + group.len() as f64 * thick / 2.0;
        if let Some(bar) = group.first() {
            write_text(&mut svg, [left - 10.0, middle + 4.0], 13, "end", &bar.name);
        }
        for bar in group {
            if bar.figure > 0.0 {
                let (from, to) = (at(bar.figure.min(1.0)), at(bar.figure.max(1.0)));
                let _ = writeln!(
                    svg,
                    "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    to - from,
                    thick - 2.0,
                    bar.color
                );
                write_text(&mut svg, [to + 5.0, y + 11.0], 11, "start", &format!("{:.2}", bar.figure));
            }
            y += thick;
        }
        y += gap;
    }
    rule(&mut svg, [at(1.0), top, at(1.0), bottom], INK, "");
    write_text(&mut svg, [left.midpoint(right), bottom + 42.0], 14, "middle", horizontal);
    svg.push_str("</svg>\n");
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_and_a_bar_its_figure() {
        let points = vec![(8, 0.5), (1024, 20.0), (2048, 0.0)];
        let line = Line { name: "a < b".into(), color: BLUE, is_limit: false, is_thin: false, points };
        let svg = lines("Title", ["bytes", "us"], "note", &[line]).unwrap();
        for wanted in ["a &lt; b", ">1 KiB<", "polyline", ">0.5<", ">20<"] {
            assert!(svg.contains(wanted), "{wanted}: {svg}");
        }
        assert!(!svg.contains("2 KiB"), "what is no figure has no place: {svg}");
        let bar = |figure| Bar { name: "nginx".into(), color: RED, figure };
        let svg = bars("Title", "over TCP", "note", &[("moved", RED)], &[vec![bar(2.5), bar(f64::NAN)]]).unwrap();
        assert!(svg.contains(">2.50<") && svg.contains(">nginx<") && !svg.contains("NaN"), "{svg}");
        assert!(lines("", ["", ""], "", &[]).is_none() && bars("", "", "", &[], &[]).is_none());
    }
}
