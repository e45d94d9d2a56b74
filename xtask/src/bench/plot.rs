//! Speed over budget as a picture.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::run::Run;

const SIZE: (f64, f64) = (760.0, 420.0);
/// Space for labels at the left, the top, the right and the bottom.
const LEFT: f64 = 60.0;
const TOP: f64 = 20.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// Told apart by people who see colours otherwise, too.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// A line of the picture: what it is, and tokens/s by MiB.
struct Curve<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

/// Draws the runs that had a budget, a curve for each variant, to the SVG file `path`.
pub fn write(path: &Path, runs: &[Run]) -> Result<()> {
    let curves = curves(runs);
    ensure!(!curves.is_empty(), "no run within a budget ended, so there is nothing to draw");
    fs::write(path, svg(&curves)).with_context(|| format!("cannot write {}", path.display()))
}

fn curves(runs: &[Run]) -> Vec<Curve<'_>> {
    let mut curves: Vec<Curve<'_>> = Vec::new();
    let within = |run: &Run| Some((run.budget_bytes? as f64 / f64::from(1 << 20), run.tok_per_s?));
    for (run, (mib, speed)) in runs.iter().filter_map(|run| Some((run, within(run)?))) {
        let place = curves.iter().position(|curve| curve.name == run.variant);
        let place = place.unwrap_or_else(|| {
            curves.push(Curve { name: &run.variant, points: Vec::new() });
            curves.len() - 1
        });
        curves[place].points.push((mib, speed));
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The mean of several turns.
        let turns: Vec<_> = curve.points.chunk_by(|a, b| a.0 == b.0).collect();
        let mean = |turn: &[(f64, f64)]| {
            let sum: f64 = turn.iter().map(|point| point.1).sum();
            (turn[0].0, sum / turn.len() as f64)
        };
        curve.points = turns.into_iter().map(mean).collect();
    }
    curves
}

fn svg(curves: &[Curve<'_>]) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (low, high) = points().fold((f64::MAX, f64::MIN), |(a, b), (x, _)| (a.min(x), b.max(x)));
    let span = (high - low).max(1.0);
    let top = points().fold(0.0, |most: f64, (_, y)| most.max(y)).max(1e-9) * 1.08;
    let (width, height) = SIZE;
    let x = |mib: f64| LEFT + (mib - low) / span * (width - LEFT - RIGHT);
    let y = |speed: f64| height - BOTTOM - speed / top * (height - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, of: &str| {
        let of = of.replace('&', "&amp;").replace('<', "&lt;");
        let _ =
            writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{of}</text>");
    };
    let step = step(top);
    let lines = (0..).map(|i| f64::from(i) * step).take_while(|speed| *speed < top);
    let lines: Vec<f64> = lines.collect();
    lines.iter().for_each(|speed| text(LEFT - 6.0, y(*speed) + 4.0, "end", &format!("{speed}")));
    let mut budgets: Vec<f64> = points().map(|point| point.0).collect();
    budgets.sort_by(f64::total_cmp);
    budgets.dedup();
    budgets
        .iter()
        .for_each(|mib| text(x(*mib), height - BOTTOM + 16.0, "middle", &format!("{mib}")));
    text(width / 2.0, height - 10.0, "middle", "budget, MiB");
    text(8.0, TOP - 6.0, "start", "tokens/s");
    for (i, curve) in curves.iter().enumerate() {
        text(LEFT + 34.0, TOP + 18.0 + 16.0 * i as f64, "start", curve.name);
    }
    let mut line = |from: (f64, f64), to: (f64, f64), style: &str| {
        let ((x, y), (to_x, to_y)) = (from, to);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" {style}/>"
        );
    };
    for speed in &lines {
        line((LEFT, y(*speed)), (width - RIGHT, y(*speed)), "stroke=\"#ddd\"");
    }
    for (i, curve) in curves.iter().enumerate() {
        let style = format!("stroke=\"{}\" stroke-width=\"2\"", COLOURS[i % COLOURS.len()]);
        let at = TOP + 14.0 + 16.0 * i as f64;
        line((LEFT + 8.0, at), (LEFT + 28.0, at), &style);
        for pair in curve.points.windows(2) {
            line((x(pair[0].0), y(pair[0].1)), (x(pair[1].0), y(pair[1].1)), &style);
        }
        for (mib, speed) in &curve.points {
            let (x, y) = (x(*mib), y(*speed));
            line((x - 3.0, y), (x + 3.0, y), &style);
            line((x, y - 3.0), (x, y + 3.0), &style);
        }
    }
    out + "</svg>\n"
}

/// A round distance of lines, so that some five fit in.
fn step(top: f64) -> f64 {
    let rough = top / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0].into_iter().find(|round| round * power >= rough);
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lie_at_round_numbers() {
        for (top, expected) in [(4.9, 1.0), (5.1, 2.0), (11.0, 5.0), (0.3, 0.1), (240.0, 50.0)] {
            assert!((step(top) - expected).abs() < 1e-9, "{top}: {}", step(top));
        }
    }

    #[test]
    fn curves_are_drawn_within_the_picture() {
        let points = vec![(500.0, 2.0), (700.0, 4.0)];
        let curves =
            [Curve { name: "a < b", points }, Curve { name: "one", points: vec![(600.0, 9.0)] }];
        let svg = svg(&curves);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b") && svg.contains(">500<") && svg.contains(">700<"));
        let numbers = svg.split('"').filter_map(|part| part.parse::<f64>().ok());
        assert!(numbers.into_iter().all(|n| (0.0..=SIZE.0).contains(&n)), "{svg}");
    }
}
