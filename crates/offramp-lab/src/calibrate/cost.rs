//! A macro that declares a structure of costs, with a display name for each cost.

/// Display name of a cost in [`Costs`](super::Costs): the part of the system that spends the time, if any, and the
/// unit.
pub(super) type Cost = &'static str;

/// Declares a structure of costs. Each cost has a field, a constant with the display name of the cost, and an entry in
/// `values`.
///
/// Fields after the semicolon are optional structures of further costs. A structure that was not measured has no
/// values.
macro_rules! named_costs {
    ($(#[$meta:meta])* $struct:ident {
        $($(#[$doc:meta])+ $field:ident: $cost:ident = $name:literal,)+
        $(; $($(#[$more_doc:meta])+ $more:ident: $type:ty,)+)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $struct {
            $($(#[$doc])+ pub $field: f64,)+
            $($($(#[$more_doc])+ pub $more: Option<$type>,)+)?
        }

        impl $struct {
            $(pub(super) const $cost: Cost = $name;)+

            /// Returns all measured costs, in order of display.
            pub(super) fn values(&self) -> Vec<(Cost, f64)> {
                let own = [$((Self::$cost, self.$field)),+].into_iter();
                own$($(.chain(self.$more.iter().flat_map(<$type>::values)))+)?.collect()
            }
        }
    };
}

pub(super) use named_costs;
