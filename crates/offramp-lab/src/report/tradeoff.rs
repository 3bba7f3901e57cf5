//! The charts of interrupt moderation: the interrupts per frame under each policy, against latency or processor time.
//!
//! Each load has a panel, and each policy is a labelled point. Colours only highlight two points: the adapter without
//! moderation, and the policy that the main verdict compares with it (the judged policy).

use serde::Serialize;

use super::axis::{Axis, Tick};
use super::figure::Drawn;
use super::numbers::{or_dash, share};
use crate::metric;
use crate::model::{Experiment, Variant};

/// Prefix of the names of the moderation experiments.
const LOADS: &str = "moderation-";
/// Index of the variant with the judged policy.
const JUDGED: usize = 1;
/// Width of a panel, in units of the SVG view box. `HEIGHT` is its height.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
/// Width reserved left of the plot for the ticks of the vertical axis, in view box units.
const LEFT: f64 = 50.0;
/// Width reserved right of the plot, in view box units.
const RIGHT: f64 = 12.0;
/// Height reserved above the plot, in view box units.
const TOP: f64 = 12.0;
/// Height reserved below the plot for ticks and title of the horizontal axis, in view box units.
const BELOW: f64 = 44.0;
/// Height of a label's line, in view box units.
const LABEL_HEIGHT: f64 = 14.0;
/// Mean width of a letter in a label, in view box units. The label of the judged policy is bold.
const LETTER_WIDTH: f64 = 6.7;
const BOLD_LETTER_WIDTH: f64 = 7.8;
/// Distance from a mark to its label, in view box units.
const LABEL_GAP: f64 = 9.0;
/// Half the size of the largest mark, in view box units.
const MARK: f64 = 6.0;
/// Half the thickness of a line between two marks, including a margin, in view box units.
const LINE: f64 = 2.0;
/// Maximum number of text lines by which a label is moved from its mark.
const LINES_MOVED_MAX: i32 = 9;
/// Maximum ratio between the highest and the lowest number of interrupts per frame at which these numbers count as
/// equal. If they count as equal, no policy saves interrupts.
const SAME_INTERRUPTS: f64 = 1.1;

/// A panel: interrupts per frame on the horizontal axis, and response time or processor time on the vertical axis.
#[derive(Serialize)]
pub struct Panel {
    /// Name of the experiment that has this load, such as `moderation-rpc`.
    load: String,
    /// Axes of the panel.
    drawn: Drawn,
    points: Vec<Point>,
    /// `true` if each policy has a second mark for the 99th percentile.
    has_tail: bool,
}

/// A moderation policy, placed in a panel.
#[derive(Serialize)]
struct Point {
    class: &'static str,
    name: String,
    /// Text with all known figures of the policy.
    tooltip: String,
    x: f64,
    y: f64,
    /// Position of the 99th percentile.
    tail_y: Option<f64>,
    label_x: f64,
    label_y: f64,
    anchor: &'static str,
    /// Line from the mark to a label that was moved.
    leader: Option<[f64; 4]>,
}

/// The figures of a variant that are drawn.
struct Figures<'a> {
    variant: &'a Variant,
    interrupts_per_frame: f64,
    value: f64,
    tail: Option<f64>,
}

/// Returns the panels of a run, one per moderation load. For a load without latencies, the vertical axis shows
/// processor time.
pub fn panels(experiments: &[Experiment]) -> Vec<Panel> {
    experiments.iter().filter(|experiment| experiment.name.starts_with(LOADS)).filter_map(panel).collect()
}

fn panel(experiment: &Experiment) -> Option<Panel> {
    let is_timed = experiment.variants.iter().any(|variant| variant.latency_p50_us.is_some());
    let figures: Vec<Figures> = experiment.variants.iter().filter_map(|variant| of(variant, is_timed)).collect();
    if figures.len() < 2 {
        return None;
    }
    let (left, right, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BELOW);
    let values: Vec<f64> = figures.iter().flat_map(|figures| [Some(figures.value), figures.tail]).flatten().collect();
    let across = Across::of(&figures, [left, right]);
    let y = if is_timed { Axis::log(&values, [bottom, TOP]) } else { Axis::linear(&values, [bottom, TOP]) };
    let title = if is_timed { "Response time, µs" } else { "Host CPU, s/GB" };
    let said: Vec<String> = figures.iter().map(tooltip).collect();
    Some(Panel {
        load: experiment.name.clone(),
        points: points(&figures, &across.xs, &y),
        drawn: Drawn {
            title: title.to_owned(),
            description: format!("{title}, over interrupts per frame. {}.", said.join("; ")),
            width: WIDTH,
            height: HEIGHT,
            left,
            right,
            top: TOP,
            bottom,
            middle_x: f64::midpoint(left, right),
            x_title: across.title,
            x_ticks: across.ticks,
            y_ticks: y.placed(),
            ..Drawn::default()
        },
        has_tail: is_timed,
    })
}

/// The horizontal positions of the policies.
struct Across {
    /// The position of each policy.
    xs: Vec<f64>,
    ticks: Vec<Tick>,
    title: String,
}

impl Across {
    /// Places the policies by interrupts per frame, or side by side if the rates are equal. The rates are equal for
    /// single requests, because each request is one frame and one interrupt under every policy.
    fn of(figures: &[Figures], ends: [f64; 2]) -> Self {
        let interrupts: Vec<f64> = figures.iter().map(|figures| figures.interrupts_per_frame).collect();
        let low = interrupts.iter().copied().fold(f64::INFINITY, f64::min);
        let high = interrupts.iter().copied().fold(0.0, f64::max);
        if high / low <= SAME_INTERRUPTS {
            let room = (ends[1] - ends[0]) / figures.len() as f64;
            return Self {
                xs: (0..figures.len()).map(|position| ends[0] + (position as f64 + 0.5) * room).collect(),
                ticks: Vec::new(),
                title: format!("{} interrupts per frame under every rule (side by side)", share(high)),
            };
        }
        let axis = Axis::log(&interrupts, ends);
        Self {
            xs: interrupts.iter().map(|value| axis.at(*value)).collect(),
            ticks: axis.placed(),
            title: "interrupts per frame from the wire".to_owned(),
        }
    }
}

fn of(variant: &Variant, is_timed: bool) -> Option<Figures<'_>> {
    let above_zero = |value: Option<f64>| value.filter(|value| *value > 0.0 && value.is_finite());
    let (value, tail) = if is_timed {
        (variant.latency_p50_us, above_zero(variant.latency_p99_us))
    } else {
        (variant.host_cpu_s_per_gb, None)
    };
    let interrupts_per_frame = above_zero(variant.interrupts_per_frame)?;
    Some(Figures { variant, interrupts_per_frame, value: above_zero(value)?, tail })
}

fn tooltip(figures: &Figures) -> String {
    let Figures { variant, interrupts_per_frame, .. } = figures;
    let text = |name: &str, what: &str| {
        let metric = metric::find(name)?;
        let value = metric.median(variant)?;
        Some(format!("{what} {}", (metric.text)(value)))
    };
    let parts = [
        text("latency_p50_us", "median µs"),
        text("latency_p99_us", "99th percentile µs"),
        text("host_cpu_s_per_gb", "host CPU s/GB").filter(|_| figures.tail.is_none()),
        text("interrupts_per_s", "interrupts/s"),
        Some(format!("interrupts/frame {}", or_dash(Some(*interrupts_per_frame), share))),
    ];
    format!("{}: {}", variant.name, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// A part of a panel to keep free of labels.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn meets(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn around(x: f64, y: f64) -> Self {
        Self { left: x - MARK, right: x + MARK, top: y - MARK, bottom: y + MARK }
    }

    fn is_inside_the_plot(&self) -> bool {
        self.left >= LEFT && self.right <= WIDTH && self.top >= 0.0 && self.bottom <= HEIGHT - BELOW
    }
}

/// Returns the areas of a policy's marks, and of the line between the marks.
fn drawn(one: &Figures, at: f64, y: &Axis) -> Vec<Area> {
    let median = y.at(one.value);
    let Some(tail) = one.tail.map(|tail| y.at(tail)) else { return vec![Area::around(at, median)] };
    let line = Area { left: at - LINE, right: at + LINE, top: tail.min(median), bottom: tail.max(median) };
    vec![Area::around(at, median), Area::around(at, tail), line]
}

/// Returns the width of a label. `position` is the index of the variant.
fn label_width(name: &str, position: usize) -> f64 {
    name.chars().count() as f64 * if position == JUDGED { BOLD_LETTER_WIDTH } else { LETTER_WIDTH }
}

fn points(figures: &[Figures], xs: &[f64], y: &Axis) -> Vec<Point> {
    let mut taken: Vec<Area> = figures.iter().zip(xs).flat_map(|(one, x)| drawn(one, *x, y)).collect();
    let mut points = Vec::with_capacity(figures.len());
    for (position, (one, mark_x)) in figures.iter().zip(xs.iter().copied()).enumerate() {
        let mark_y = y.at(one.value);
        let (place, anchor, moved) = label_place(label_width(&one.variant.name, position), mark_x, mark_y, &taken);
        taken.push(place);
        let label_x = if anchor == "start" { place.left } else { place.right };
        let middle = f64::midpoint(place.top, place.bottom);
        points.push(Point {
            class: match position {
                0 => "base",
                JUDGED => "judged",
                _ => "other",
            },
            name: one.variant.name.clone(),
            tooltip: tooltip(one),
            x: mark_x,
            y: mark_y,
            tail_y: one.tail.map(|tail| y.at(tail)),
            label_x,
            label_y: middle + 4.0,
            anchor,
            leader: moved.then_some([mark_x, mark_y, label_x, middle]),
        });
    }
    points
}

/// Places a label of `width` for the mark at `x`, `y` without overlapping `taken`. The label is next to the mark, or
/// moved up or down by some lines. Without a free place, the label is placed right of the mark.
fn label_place(width: f64, x: f64, y: f64, taken: &[Area]) -> (Area, &'static str, bool) {
    let at = |to_the_right: bool, lines: i32| {
        let middle = y + f64::from(lines) * LABEL_HEIGHT;
        let left = if to_the_right { x + LABEL_GAP } else { x - LABEL_GAP - width };
        Area { left, right: left + width, top: middle - LABEL_HEIGHT / 2.0, bottom: middle + LABEL_HEIGHT / 2.0 }
    };
    let nearest_first = (0..=LINES_MOVED_MAX).flat_map(|lines| if lines == 0 { vec![0] } else { vec![lines, -lines] });
    let places = nearest_first.flat_map(|lines| [(true, lines), (false, lines)]);
    let is_free = |place: &Area| place.is_inside_the_plot() && !taken.iter().any(|other| other.meets(place));
    let found = places.map(|(side, lines)| (at(side, lines), side, lines)).find(|(place, ..)| is_free(place));
    let beside = x + LABEL_GAP + width <= WIDTH;
    let (place, to_the_right, lines) = found.unwrap_or((at(beside, 0), beside, 0));
    (place, if to_the_right { "start" } else { "end" }, lines != 0)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn loads() -> Vec<Panel> {
        panels(&sample::with_moderation().experiments)
    }

    #[test]
    fn each_load_of_moderation_has_a_panel_with_every_policy() {
        let found = loads();
        let names: Vec<&str> = found.iter().map(|panel| panel.load.as_str()).collect();
        assert_eq!(names, ["moderation-rpc", "moderation-bulk", "moderation-mixed", "moderation-bursts"]);
        assert!(found.iter().all(|panel| panel.points.len() == 7));
        assert!(panels(&sample::report().experiments).is_empty());
    }

    #[test]
    fn every_mark_every_tick_and_every_label_lies_inside_its_panel() {
        for panel in loads() {
            for point in &panel.points {
                assert!((panel.drawn.left..=panel.drawn.right).contains(&point.x), "{}", point.name);
                let ys = point.tail_y.into_iter().chain([point.y]);
                assert!(ys.into_iter().all(|y| (panel.drawn.top..=panel.drawn.bottom).contains(&y)), "{}", point.name);
                assert!(
                    point.label_x >= 0.0 && point.label_x <= panel.drawn.width && point.label_y <= panel.drawn.height
                );
            }
            assert!(panel.drawn.x_ticks.iter().all(|tick| (panel.drawn.left..=panel.drawn.right).contains(&tick.at)));
            assert!(
                panel
                    .drawn
                    .y_ticks
                    .iter()
                    .all(|tick| (panel.drawn.top - 0.001..=panel.drawn.bottom + 0.001).contains(&tick.at))
            );
            assert!(panel.drawn.x_ticks.len() >= 2 && panel.drawn.y_ticks.len() >= 2);
        }
    }

    #[test]
    fn fewer_interrupts_are_to_the_left_and_more_time_is_above() {
        for panel in loads().iter().filter(|panel| panel.has_tail) {
            let point = |name: &str| panel.points.iter().find(|point| point.name == name).expect("a policy");
            assert!(point("net-dim").x < point("off").x && point("net-dim").y < point("off").y);
            assert!(panel.points.iter().all(|point| point.tail_y.is_some_and(|tail| tail < point.y)));
        }
    }

    #[test]
    fn labels_do_not_lie_on_each_other() {
        // Worst case: all policies have nearly the same position.
        let mut experiment = sample::moderation("moderation-rpc", true);
        for (n, variant) in experiment.variants.iter_mut().enumerate() {
            variant.interrupts_per_frame = Some(1.0 - 0.001 * n as f64);
            (variant.latency_p50_us, variant.latency_p99_us) = (Some(60.0 + n as f64), Some(90.0));
        }
        let crowded = panel(&experiment).expect("a panel");
        for panel in loads().into_iter().chain([crowded]) {
            let areas: Vec<Area> = panel.points.iter().enumerate().map(area_of_label).collect();
            for (n, one) in areas.iter().enumerate() {
                assert!(areas[..n].iter().all(|other| !one.meets(other)), "{}", panel.points[n].name);
            }
        }
    }

    fn area_of_label((position, point): (usize, &Point)) -> Area {
        let width = label_width(&point.name, position);
        let left = if point.anchor == "start" { point.label_x } else { point.label_x - width };
        let top = point.label_y - 4.0 - LABEL_HEIGHT / 2.0;
        // The area is 0.001 smaller than the label, because touching areas do not count as overlapping.
        Area { left, right: left + width - 0.001, top: top + 0.001, bottom: top + LABEL_HEIGHT - 0.001 }
    }

    #[test]
    fn where_no_rule_spares_interrupts_the_rules_stand_side_by_side() {
        let mut experiment = sample::moderation("moderation-rpc", true);
        experiment.variants.iter_mut().for_each(|variant| variant.interrupts_per_frame = Some(1.0));
        let panel = panel(&experiment).expect("a panel");
        assert!(panel.drawn.x_ticks.is_empty() && panel.drawn.x_title.contains("1.00 interrupts per frame"));
        assert!(panel.points.windows(2).all(|two| two[1].x - two[0].x > 2.0 * MARK));
        assert!((panel.drawn.left..=panel.drawn.right).contains(&panel.points[6].x));
    }

    #[test]
    fn ticks_of_a_logarithmic_axis_are_round_and_written_short() {
        let labels = |values: &[f64]| -> Vec<String> {
            Axis::log(values, [0.0, 1.0]).ticks().into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(&[0.06, 0.9]), ["0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(labels(&[50.0, 900.0]), ["50", "100", "200", "500", "1000"]);
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let mut experiment = sample::moderation("moderation-mixed", true);
        experiment.variants[3].latency_p50_us = None;
        experiment.variants[4].interrupts_per_frame = Some(0.0);
        assert_eq!(panel(&experiment).expect("a panel").points.len(), 5);
        experiment.variants.truncate(1);
        assert!(panel(&experiment).is_none());
    }
}
