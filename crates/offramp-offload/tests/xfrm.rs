//! Tests of the parser for input and output of `ip xfrm`, and of the translation into an adapter's associations.

#[path = "xfrm/meaning.rs"]
mod meaning;
#[path = "xfrm/real.rs"]
mod real;
#[path = "xfrm/refusal.rs"]
mod refusal;
#[path = "xfrm/render.rs"]
mod render;
#[path = "xfrm/round_trip.rs"]
mod round_trip;
