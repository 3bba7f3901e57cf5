//! Draws charts as SVG: lines over an axis, and stacked bars. A chart is a part of an HTML page, or a separate file.
//!
//! A template of this crate draws all charts of a report. Colours come from a style sheet, so a chart works on light
//! and dark pages and on paper. All text is escaped.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use super::axis::{Axis, Tick};

/// Width of every chart, in units of the SVG view box.
const WIDTH: f64 = 620.0;
/// Height of the plot area for lines, in view box units.
const PLOT_HEIGHT: f64 = 260.0;
/// Width reserved for the ticks of the vertical axis, in view box units.
const LEFT: f64 = 62.0;
/// Width reserved for the names of bars, in view box units.
const NAMES_WIDTH: f64 = 170.0;
/// Width reserved right of the plot, in view box units.
const RIGHT: f64 = 16.0;
/// Width reserved right of the bars for the text with the sum of each bar, in view box units.
const SUMS_WIDTH: f64 = 80.0;
/// Height of a line of the legend, in view box units.
const LEGEND_LINE: f64 = 18.0;
/// Mean width of a letter of the legend, in view box units.
const LETTER_WIDTH: f64 = 6.6;
/// Width of the mark and the gaps of a legend entry, in view box units.
const ENTRY_WIDTH: f64 = 38.0;
/// Height reserved below the plot for ticks and title of the axis, in view box units.
const BELOW: f64 = 42.0;
/// Distance from one bar to the next, in view box units.
const ROW_HEIGHT: f64 = 34.0;
/// Thickness of a bar, in view box units.
const BAR_HEIGHT: f64 = 20.0;
/// Minimum width at which a part of a bar shows its figure, in view box units.
const FIGURE_WIDTH_MIN: f64 = 40.0;
/// Number of colours for series and parts. Further series repeat the colours.
const COLOURS: usize = 8;
/// Names of the templates for a chart in a page, and for a chart in a separate file. Their extensions make minijinja
/// escape all values.
const FIGURE_TEMPLATE: &str = "figure.html";
const FILE_TEMPLATE: &str = "figure-file.xml";

/// The style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line through the points.
    Line,
    /// Only the points.
    Points,
}

/// A series of points.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name of the series.
    pub name: String,
    /// Style of the series.
    pub mark: Mark,
    /// The points, x and y. Points with a value that is negative or not finite are omitted, and on a logarithmic axis
    /// also points with a value of 0.
    pub points: Vec<[f64; 2]>,
}

/// A chart of lines over an axis.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Title of the chart.
    pub title: String,
    /// Title of the horizontal axis, with the unit.
    pub x_title: String,
    /// Title of the vertical axis, with the unit.
    pub y_title: String,
    /// `true` for a logarithmic horizontal axis.
    pub x_is_log: bool,
    /// `true` for a logarithmic vertical axis.
    pub y_is_log: bool,
    /// Series of the chart.
    pub series: Vec<Series>,
}

/// A part of a bar.
#[derive(Clone, Debug)]
pub struct BarPart {
    /// Name of the part. Parts with the same name have the same colour. Empty for the only part of a bar.
    pub name: String,
    /// Length of the part. A negative length is drawn as 0.
    pub value: f64,
    /// `true` for a part such as idle time, in which a resource does nothing. It is drawn grey, without a legend entry.
    pub is_rest: bool,
}

/// A horizontal bar.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Name of the bar.
    pub name: String,
    /// Parts of the bar, from left to right.
    pub parts: Vec<BarPart>,
    /// Text at the right end of the bar.
    pub figure: String,
    /// Range marked on the bar, such as the range of the samples.
    pub whisker: Option<[f64; 2]>,
}

/// A chart of stacked bars.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Title of the chart.
    pub title: String,
    /// Title of the axis, with the unit.
    pub x_title: String,
    /// Bars of the chart.
    pub bars: Vec<Bar>,
}

/// A chart.
#[derive(Clone, Debug)]
pub enum Figure {
    /// A chart of lines.
    Plot(Plot),
    /// A chart of bars.
    Bars(Bars),
}

impl Figure {
    /// Returns the chart as a self-contained SVG file, including its style sheet.
    ///
    /// # Panics
    /// Never panics: the template is part of the program, and all its fields exist.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut environment = environment();
        environment.add_template(FILE_TEMPLATE, include_str!("figure-file.xml")).expect("the template is well-formed");
        let template = environment.get_template(FILE_TEMPLATE).expect("the template was just added");
        template.render(minijinja::context! { drawn => Serde(self.drawn()) }).expect("it names only fields of a chart")
    }

    /// Computes the position of every element.
    pub(super) fn drawn(&self) -> Drawn {
        match self {
            Self::Plot(plot) => draw_plot(plot),
            Self::Bars(bars) => draw_bars(bars),
        }
    }
}

/// Returns the template engine with the template and the style sheet of charts.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("it has the usual delimiters"));
    environment.add_template(FIGURE_TEMPLATE, include_str!("figure.html")).expect("the template is well-formed");
    environment.add_global("figure_style", include_str!("figure.css"));
    environment
}

/// A chart with the positions of all elements.
#[derive(Default, Serialize)]
pub(super) struct Drawn {
    pub(super) title: String,
    /// Description of the chart in words and figures, for screen readers.
    pub(super) description: String,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) middle_x: f64,
    pub(super) x_title: String,
    pub(super) y_title: String,
    pub(super) x_ticks: Vec<Tick>,
    pub(super) y_ticks: Vec<Tick>,
    pub(super) legend: Vec<Entry>,
    pub(super) lines: Vec<Line>,
    pub(super) bars: Vec<DrawnBar>,
    pub(super) bar_height: f64,
}

#[derive(Serialize)]
pub(super) struct Entry {
    class: String,
    is_line: bool,
    x: f64,
    y: f64,
    name: String,
}

#[derive(Serialize)]
pub(super) struct Line {
    class: String,
    name: String,
    /// SVG path of the line; empty if only points are drawn.
    path: String,
    marks: Vec<PlacedMark>,
}

#[derive(Serialize)]
struct PlacedMark {
    x: f64,
    y: f64,
    tooltip: String,
}

#[derive(Serialize)]
pub(super) struct DrawnBar {
    name: String,
    pub(super) y: f64,
    middle: f64,
    pub(super) parts: Vec<DrawnPart>,
    pub(super) whisker: Option<[f64; 2]>,
    figure: String,
    figure_x: f64,
}

#[derive(Serialize)]
pub(super) struct DrawnPart {
    class: String,
    pub(super) x: f64,
    pub(super) width: f64,
    middle: f64,
    figure: String,
    tooltip: String,
}

fn class(position: usize) -> String {
    format!("c{}", position % COLOURS)
}

/// Places the legend's entries from left to right, line by line. Returns the placed entries, and the height of the
/// legend.
fn legend(entries: &[(String, bool, String)]) -> (Vec<Entry>, f64) {
    let (mut x, mut y) = (LEFT.min(NAMES_WIDTH) / 4.0, LEGEND_LINE / 2.0);
    let start = x;
    let mut placed = Vec::with_capacity(entries.len());
    for (class, is_line, name) in entries {
        let width = ENTRY_WIDTH + name.chars().count() as f64 * LETTER_WIDTH;
        if x > start && x + width > WIDTH {
            (x, y) = (start, y + LEGEND_LINE);
        }
        placed.push(Entry { class: class.clone(), is_line: *is_line, x, y, name: name.clone() });
        x += width;
    }
    (placed, y + LEGEND_LINE / 2.0 + 10.0)
}

/// Returns the drawable points of a series.
fn visible<'a>(plot: &'a Plot, series: &'a Series) -> impl Iterator<Item = [f64; 2]> + 'a {
    let fits = |value: f64, is_log: bool| value.is_finite() && if is_log { value > 0.0 } else { value >= 0.0 };
    series.points.iter().copied().filter(move |[x, y]| fits(*x, plot.x_is_log) && fits(*y, plot.y_is_log))
}

fn draw_plot(plot: &Plot) -> Drawn {
    let entries = plot.series.iter().enumerate();
    let entries: Vec<_> =
        entries.map(|(at, series)| (class(at), series.mark == Mark::Line, series.name.clone())).collect();
    let (legend, top) = legend(&entries);
    let (left, right, bottom) = (LEFT, WIDTH - RIGHT, top + PLOT_HEIGHT);
    let all: Vec<[f64; 2]> = plot.series.iter().flat_map(|series| visible(plot, series)).collect();
    let axis = |values: Vec<f64>, is_log: bool, linear: fn(&[f64], [f64; 2]) -> Axis, ends| {
        match values.iter().any(|value| *value > 0.0) {
            true if is_log => Axis::log(&values, ends),
            true => linear(&values, ends),
            // All values are 0, so any scale works.
            false => linear(&[1.0], ends),
        }
    };
    let x = axis(all.iter().map(|point| point[0]).collect(), plot.x_is_log, Axis::linear_up_to, [left, right]);
    let y = axis(all.iter().map(|point| point[1]).collect(), plot.y_is_log, Axis::linear, [bottom, top]);
    let lines = plot.series.iter().enumerate().map(|(at, series)| line(plot, series, class(at), &x, &y)).collect();
    Drawn {
        title: plot.title.clone(),
        description: plot.series.iter().map(|series| said(plot, series)).collect::<Vec<_>>().join(" "),
        width: WIDTH,
        height: bottom + BELOW,
        left,
        right,
        top,
        bottom,
        middle_x: f64::midpoint(left, right),
        x_title: plot.x_title.clone(),
        y_title: plot.y_title.clone(),
        x_ticks: x.placed(),
        y_ticks: y.placed(),
        legend,
        lines,
        ..Drawn::default()
    }
}

/// Shortens a name that is too long for the space left of the bars. The end of the name is kept, because names of
/// systems differ at the end.
fn cut(name: &str) -> String {
    const LETTERS: usize = 24;
    let letters = name.chars().count();
    if letters <= LETTERS {
        name.to_owned()
    } else {
        ['…'].into_iter().chain(name.chars().skip(letters + 1 - LETTERS)).collect()
    }
}

/// Describes a series in words.
fn said(plot: &Plot, series: &Series) -> String {
    let points: Vec<_> = visible(plot, series).map(|[x, y]| format!("{} at {}", number(y), number(x))).collect();
    format!("{}: {}.", series.name, points.join(", "))
}

fn line(plot: &Plot, series: &Series, class: String, x: &Axis, y: &Axis) -> Line {
    let marks: Vec<PlacedMark> = visible(plot, series)
        .map(|[at, value]| PlacedMark {
            x: x.at(at),
            y: y.at(value),
            tooltip: format!("{}: {} at {}", series.name, number(value), number(at)),
        })
        .collect();
    let steps = marks.iter().enumerate().map(|(at, mark)| {
        let letter = if at == 0 { 'M' } else { 'L' };
        format!("{letter}{:.1} {:.1}", mark.x, mark.y)
    });
    let path = if series.mark == Mark::Line { steps.collect() } else { String::new() };
    Line { class, name: series.name.clone(), path, marks }
}

fn draw_bars(bars: &Bars) -> Drawn {
    let mut names: Vec<&str> = Vec::new();
    for part in bars.bars.iter().flat_map(|bar| &bar.parts) {
        if !part.is_rest && !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    let entries: Vec<_> = names.iter().enumerate().map(|(at, name)| (class(at), false, (*name).to_owned())).collect();
    let (legend, top) = if entries.len() > 1 { legend(&entries) } else { (Vec::new(), 8.0) };
    let end = |bar: &Bar| bar.parts.iter().map(|part| part.value.max(0.0)).sum::<f64>();
    let ends = bars.bars.iter().flat_map(|bar| bar.whisker.map(|[_, high]| high).into_iter().chain([end(bar)]));
    let longest = ends.fold(0.0, f64::max);
    let (left, right) = (NAMES_WIDTH, WIDTH - SUMS_WIDTH);
    let axis = Axis::linear_up_to(&[if longest > 0.0 { longest } else { 1.0 }], [left, right]);
    let bottom = top + bars.bars.len() as f64 * ROW_HEIGHT;
    let drawn = bars.bars.iter().enumerate();
    let drawn = drawn.map(|(at, bar)| draw_bar(bar, top + at as f64 * ROW_HEIGHT, &names, &axis));
    Drawn {
        title: bars.title.clone(),
        description: bars.bars.iter().map(said_bar).collect::<Vec<_>>().join(" "),
        width: WIDTH,
        height: bottom + BELOW,
        left,
        right,
        top,
        bottom,
        middle_x: f64::midpoint(left, right),
        x_title: bars.x_title.clone(),
        x_ticks: axis.placed(),
        legend,
        bars: drawn.collect(),
        bar_height: BAR_HEIGHT,
        ..Drawn::default()
    }
}

fn said_bar(bar: &Bar) -> String {
    if is_single(bar) {
        return format!("{}: {}.", bar.name, bar.figure);
    }
    let parts: Vec<_> = bar.parts.iter().map(|part| format!("{} {}", part.name, number(part.value))).collect();
    format!("{}: {}.", bar.name, parts.join(", "))
}

/// Returns whether the text at the end of the bar describes the bar completely.
fn is_single(bar: &Bar) -> bool {
    matches!(&bar.parts[..], [part] if part.name.is_empty())
}

fn draw_bar(bar: &Bar, top: f64, names: &[&str], axis: &Axis) -> DrawnBar {
    let is_single = is_single(bar);
    let mut end = 0.0;
    let parts: Vec<DrawnPart> = bar
        .parts
        .iter()
        .map(|part| {
            let start = end;
            end += part.value.max(0.0);
            let (x, width) = (axis.at(start), axis.at(end) - axis.at(start));
            let position = names.iter().position(|name| *name == part.name);
            DrawnPart {
                class: position.filter(|_| !part.is_rest).map_or_else(|| "rest".to_owned(), class),
                x,
                width,
                middle: x + width / 2.0,
                figure: if width >= FIGURE_WIDTH_MIN && !is_single { number(part.value) } else { String::new() },
                tooltip: if is_single {
                    said_bar(bar)
                } else {
                    format!("{}, {}: {}", bar.name, part.name, number(part.value))
                },
            }
        })
        .collect();
    DrawnBar {
        name: cut(&bar.name),
        y: top + (ROW_HEIGHT - BAR_HEIGHT) / 2.0,
        middle: top + ROW_HEIGHT / 2.0,
        parts,
        whisker: bar.whisker.map(|range| range.map(|value| axis.at(value))),
        figure: bar.figure.clone(),
        figure_x: axis.at(bar.whisker.map_or(end, |[_, high]| end.max(high))) + 7.0,
    }
}

/// Formats a number with about three significant digits: without decimals from 100 and for whole numbers, else with one
/// to three decimals.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let decimals = match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(x_is_log: bool, points: &[[f64; 2]]) -> Plot {
        let series = |name: &str, mark| Series { name: name.to_owned(), mark, points: points.to_vec() };
        Plot {
            title: "speed".to_owned(),
            x_title: "clock, MHz".to_owned(),
            y_title: "KiB/s".to_owned(),
            x_is_log,
            y_is_log: false,
            series: vec![series("modelled", Mark::Line), series("published", Mark::Points)],
        }
    }

    fn bar(name: &str, values: &[f64]) -> Bar {
        let parts = values.iter().enumerate();
        let parts = parts.map(|(at, value)| BarPart { name: format!("part {at}"), value: *value, is_rest: at == 2 });
        Bar { name: name.to_owned(), parts: parts.collect(), figure: "100 %".to_owned(), whisker: None }
    }

    #[test]
    fn every_point_lies_inside_the_plot_and_larger_values_higher() {
        for x_is_log in [false, true] {
            let drawn = Figure::Plot(plot(x_is_log, &[[4.0, 10.0], [8.0, 500.0], [26.7, 1100.0]])).drawn();
            for line in &drawn.lines {
                let inside = |mark: &PlacedMark| {
                    (drawn.left..=drawn.right).contains(&mark.x) && (drawn.top..=drawn.bottom).contains(&mark.y)
                };
                assert!(line.marks.iter().all(inside));
                assert!(line.marks.windows(2).all(|pair| pair[1].x > pair[0].x && pair[1].y < pair[0].y));
            }
            assert!(drawn.lines[1].path.is_empty() && drawn.lines[0].path.starts_with('M'));
        }
    }

    #[test]
    fn what_is_no_number_is_left_out_and_nothing_at_all_is_an_empty_plot() {
        let drawn = Figure::Plot(plot(true, &[[0.0, 1.0], [1.0, f64::NAN], [2.0, 3.0]])).drawn();
        assert_eq!(drawn.lines[0].marks.len(), 1);
        let empty = Figure::Plot(plot(false, &[])).svg();
        assert!(empty.contains("<svg") && !empty.contains("NaN"));
    }

    #[test]
    fn parts_of_a_bar_are_as_long_as_their_values_one_behind_the_other() {
        let bars = Bars {
            title: "time".to_owned(),
            x_title: "us".to_owned(),
            bars: vec![bar("a", &[10.0, 30.0, 60.0]), bar("b", &[20.0, 0.0, 5.0])],
        };
        let drawn = Figure::Bars(bars).drawn();
        let [first, second, rest] = &drawn.bars[0].parts[..] else { panic!("three parts") };
        assert!((second.width / first.width - 3.0).abs() < 1e-9);
        assert!((second.x - first.x - first.width).abs() < 1e-9);
        assert!(rest.class == "rest" && (rest.x + rest.width - drawn.right).abs() < 1e-9);
        assert_eq!(drawn.bars[1].parts[0].class, first.class, "one name, one colour");
        assert_eq!(drawn.legend.len(), 2);
    }

    #[test]
    fn text_is_escaped_and_a_file_brings_its_style() {
        let mut plot = plot(false, &[[1.0, 1.0]]);
        plot.series[0].name = "<script>&".to_owned();
        let svg = Figure::Plot(plot).svg();
        assert!(svg.contains("&lt;script&gt;&amp;") && !svg.contains("<script"));
        assert!(svg.contains("xmlns=\"http://www.w3.org/2000/svg\"") && svg.contains("<style>"));
    }
}
