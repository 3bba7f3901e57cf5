//! The picture of the crates, as an SVG: a box for each crate, and an arrow for each dependency that no other
//! dependency implies.

use std::collections::BTreeSet;
use std::fmt::Write;

/// A row of the list of crates: a crate, a few words on its task, and the crates on which it depends.
pub struct Row<'a> {
    pub name: &'a str,
    pub task: &'a str,
    pub depends_on: BTreeSet<&'a str>,
}

/// Sizes in the picture's units.
const BOX_WIDTH: f64 = 196.0;
const BOX_HEIGHT: f64 = 46.0;
const GAP: f64 = 22.0;
const LAYER_HEIGHT: f64 = 98.0;
const MARGIN: f64 = 12.0;
/// Width needed by an arrow in a crossed layer.
const CROSSING_WIDTH: f64 = 8.0;
/// Number of sorts of the layers in each direction. Each sort orders the places of every layer by their neighbours. The
/// order no longer changes after a few sorts.
const PASSES: usize = 8;

const STYLE: &str = r#"<style>
.crates { --ink: #16191d; --quiet: #59626d; --edge: #8a94a0; --box: #eaf1fb; --rim: #2a78d6; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  .crates { --ink: #e8ebef; --quiet: #a9b3be; --edge: #7b8794; --box: #1c2836; --rim: #4d94e8; --paper: #14171b; }
}
.crates .paper { fill: var(--paper); }
.crates .box { fill: var(--box); stroke: var(--rim); }
.crates .edge { fill: none; stroke: var(--edge); stroke-width: 1.4; }
.crates marker path { fill: var(--edge); }
.crates text { font: 600 14px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; fill: var(--ink); text-anchor: middle; }
.crates .task { font-weight: 400; font-size: 12px; fill: var(--quiet); }
</style>"#;

/// A place in a layer: a crate, or an arrow that crosses the layer.
struct Place {
    /// Index of the crate, or `None` for a crossing.
    row: Option<usize>,
    layer: usize,
    /// Indices of the places in the next layer below to which arrows lead from this place.
    below: Vec<usize>,
    /// Centre, from the left.
    x: f64,
}

/// Draws the crates of the list. A crate must come after the crates that it depends on.
pub fn svg(rows: &[Row]) -> String {
    let (mut places, edges) = places(rows);
    let layers = arrange(&mut places);
    let widest = layers.iter().map(|layer| width(layer, &places)).fold(0.0, f64::max);
    let (width, height) = (widest + 2.0 * MARGIN, (layers.len() - 1) as f64 * LAYER_HEIGHT + BOX_HEIGHT + 2.0 * MARGIN);
    let bottom = |layer: usize| MARGIN + (layers.len() - 1 - layer) as f64 * LAYER_HEIGHT + BOX_HEIGHT;
    let mut text = format!(
        "<svg class=\"crates\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
         <title>The crates of offramp, and their dependencies</title>\n<desc>{}.</desc>\n{STYLE}\n\
         <defs><marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0,0 L8,4 L0,8 z\"/></marker></defs>\n\
         <rect class=\"paper\" width=\"{width:.0}\" height=\"{height:.0}\"/>\n",
        described(rows)
    );
    for edge in edges {
        let _ =
            writeln!(text, "<path class=\"edge\" marker-end=\"url(#end)\" d=\"{}\"/>", curve(&edge, &places, bottom));
    }
    for place in &places {
        let Some(row) = place.row else { continue };
        let (x, y) = (place.x - BOX_WIDTH / 2.0, bottom(place.layer) - BOX_HEIGHT);
        let _ = writeln!(
            text,
            "<rect class=\"box\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/>\
             <text x=\"{0:.0}\" y=\"{1:.0}\">{2}</text><text class=\"task\" x=\"{0:.0}\" y=\"{3:.0}\">{4}</text>",
            place.x,
            y + 19.0,
            rows[row].name,
            y + 36.0,
            rows[row].task
        );
    }
    text + "</svg>\n"
}

fn described(rows: &[Row]) -> String {
    let lists = rows.iter().filter(|row| !row.depends_on.is_empty()).map(|row| {
        let names: Vec<&str> = row.depends_on.iter().copied().collect();
        format!("{} depends on {}", row.name, names.join(", "))
    });
    lists.collect::<Vec<_>>().join(". ")
}

/// Returns the dependencies of a row that no other dependency implies.
fn direct(rows: &[Row], row: usize) -> Vec<usize> {
    let index = |name: &str| rows.iter().position(|row| row.name == name).expect("a dependency is listed");
    let all = &rows[row].depends_on;
    let is_implied = |name: &str| all.iter().any(|other| reaches(rows, index(other), name));
    all.iter().filter(|name| !is_implied(name)).map(|name| index(name)).collect()
}

fn reaches(rows: &[Row], from: usize, name: &str) -> bool {
    rows[..from].iter().any(|row| {
        rows[from].depends_on.contains(row.name)
            && (row.name == name || reaches(rows, rows.iter().position(|each| each.name == row.name).unwrap(), name))
    })
}

/// Returns the places of all crates and crossings, and each arrow as the list of its places from top to bottom.
fn places(rows: &[Row]) -> (Vec<Place>, Vec<Vec<usize>>) {
    let mut places: Vec<Place> = Vec::new();
    let mut edges = Vec::new();
    for row in 0..rows.len() {
        let below = direct(rows, row);
        let layer = below.iter().map(|below| places[*below].layer + 1).max().unwrap_or(0);
        places.push(Place { row: Some(row), layer, below: Vec::new(), x: 0.0 });
        edges.extend(below.into_iter().map(|below| vec![row, below]));
    }
    for edge in &mut edges {
        let below = edge[1];
        for layer in (places[below].layer + 1..places[edge[0]].layer).rev() {
            edge.insert(edge.len() - 1, places.len());
            places.push(Place { row: None, layer, below: Vec::new(), x: 0.0 });
        }
        for pair in edge.windows(2) {
            places[pair[0]].below.push(pair[1]);
        }
    }
    (places, edges)
}

fn place_width(place: &Place) -> f64 {
    if place.row.is_some() { BOX_WIDTH } else { CROSSING_WIDTH }
}

fn width(layer: &[usize], places: &[Place]) -> f64 {
    layer.iter().map(|place| place_width(&places[*place])).sum::<f64>() + GAP * (layer.len() - 1) as f64
}

/// Sorts the places of each layer by the mean position of their neighbours, so that few arrows cross. Sets the centres
/// of all places, and returns the layers from bottom to top.
fn arrange(places: &mut [Place]) -> Vec<Vec<usize>> {
    let count = places.iter().map(|place| place.layer + 1).max().unwrap_or(0);
    let of_layer = |layer| (0..places.len()).filter(|place| places[*place].layer == layer).collect();
    let mut layers: Vec<Vec<usize>> = (0..count).map(of_layer).collect();
    let widest = |places: &[Place], layers: &[Vec<usize>]| {
        layers.iter().map(|layer| width(layer, places)).fold(0.0, f64::max) + 2.0 * MARGIN
    };
    for pass in 0..2 * PASSES {
        for layer in 0..count {
            let looks_below = pass % 2 == 0;
            let mean = |place: usize| {
                let above = (0..places.len()).filter(|above| places[*above].below.contains(&place));
                let near: Vec<usize> = if looks_below { places[place].below.clone() } else { above.collect() };
                let sum: f64 = near.iter().map(|near| places[*near].x).sum();
                if near.is_empty() { places[place].x } else { sum / near.len() as f64 }
            };
            let mut sorted: Vec<(f64, usize)> = layers[layer].iter().map(|place| (mean(*place), *place)).collect();
            sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
            layers[layer] = sorted.into_iter().map(|(_, place)| place).collect();
            let mut x = (widest(places, &layers) - width(&layers[layer], places)) / 2.0;
            for place in &layers[layer] {
                places[*place].x = x + place_width(&places[*place]) / 2.0;
                x += place_width(&places[*place]) + GAP;
            }
        }
    }
    layers
}

/// Returns an SVG path through the places of an arrow.
fn curve(edge: &[usize], places: &[Place], bottom: impl Fn(usize) -> f64) -> String {
    let first = &places[edge[0]];
    let mut path = format!("M{:.0},{:.0}", first.x, bottom(first.layer));
    for pair in edge.windows(2) {
        let (above, below) = (&places[pair[0]], &places[pair[1]]);
        let (from, to) = (bottom(above.layer), bottom(below.layer) - BOX_HEIGHT);
        let middle = f64::midpoint(from, to);
        let _ = write!(path, " C{0:.0},{middle:.0} {1:.0},{middle:.0} {1:.0},{to:.0}", above.x, below.x);
        if below.row.is_none() {
            let _ = write!(path, " L{:.0},{:.0}", below.x, bottom(below.layer));
        }
    }
    path
}
