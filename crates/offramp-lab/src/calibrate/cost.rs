//! Costs with names for people.

/// The owner and the unit of one of the [`Costs`](super::Costs).
pub(super) type Cost = &'static str;

/// Declares a structure of costs: a field for each, a constant with its name, and the list of all.
///
/// The last fields are structures of further costs, each with values only if it was measured.
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

            /// Returns all measured costs, in reading order.
            pub(super) fn values(&self) -> Vec<(Cost, f64)> {
                let own = [$((Self::$cost, self.$field)),+].into_iter();
                own$($(.chain(self.$more.iter().flat_map(<$type>::values)))+)?.collect()
            }
        }
    };
}

pub(super) use named_costs;
