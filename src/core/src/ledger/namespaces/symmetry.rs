//! Symmetry reduction: of the states that differ only in the numbers of the replicas, one is searched.

use stateright::Representative;

use super::State;

impl Representative for State {
    fn representative(&self) -> Self {
        let mut swapped = self.clone();
        swapped.replicas.reverse();
        let last = u8::try_from(self.replicas.len() - 1).unwrap();
        for request in &mut swapped.requests {
            request.replica = last - request.replica;
        }
        swapped.min(self.clone())
    }
}
