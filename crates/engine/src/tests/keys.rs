//! Keys of regions.

use std::collections::HashSet;

use super::mock::*;
use crate::region::place;

/// A program uses its regions by turns: each is remembered in a place of its own, also after others have gone.
#[test]
fn few_regions_share_no_place() {
    let mut w = World::new(1, 1);
    let n = &mut w.nodes[0];
    let own: Vec<_> = n.engine.mem.mrs.iter().map(|(_, mr)| place(mr.info.key)).collect();
    for _ in 0..100 {
        let made: Vec<_> = (0..24).map(|_| n.engine.reg_mr(n.pd, BASE, 0x1000, BASE, ALL).unwrap()).collect();
        let places: HashSet<_> = made.iter().map(|(_, lkey, _)| place(lkey.0)).chain(own.iter().copied()).collect();
        assert_eq!(places.len(), made.len() + own.len());
        for (mr, ..) in made {
            n.engine.dereg_mr(mr, true).unwrap();
        }
    }
}
