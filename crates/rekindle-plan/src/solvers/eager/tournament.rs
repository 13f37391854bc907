//! Who goes first, among many whose scores change with every tick of the clock.
//!
//! A score is a cost over a size and a staleness. Staleness grows for all at once, so two values change places at most
//! once while neither is touched, and the moment can be computed. A tournament over the values remembers each winner
//! with the moment until which it is sure to win: asking for the best looks again only where that moment has come
//! (a kinetic tournament, after Basch, Guibas and Hershberger 1997). Comparisons are exact, in integers, so that every
//! machine finds the same winner.

use std::cmp::Ordering;

/// A value that can be let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Player {
    /// What letting it go frees; at least 1.
    pub(super) freed: u64,
    /// What bringing it back costs; at least 1.
    pub(super) cost: u64,
    /// When it was used last, which is before now.
    pub(super) used: u64,
    /// Whose it is: the last word between equals.
    pub(super) name: u64,
}

impl Player {
    pub(super) fn staleness(&self, now: u64) -> u64 {
        now.saturating_sub(self.used).max(1)
    }

    /// `Less` goes first: the smaller score, then the longer unused, then the smaller name.
    fn compare(&self, other: &Self, now: u64) -> Ordering {
        let mine = u128::from(self.freed) * u128::from(self.staleness(now));
        let theirs = u128::from(other.freed) * u128::from(other.staleness(now));
        // cost / (freed x staleness), multiplied out.
        wide_product(theirs, self.cost)
            .cmp(&wide_product(mine, other.cost))
            .then(self.used.cmp(&other.used))
            .then(self.name.cmp(&other.name))
    }

    /// A moment before which `other`, which loses now, still loses: never too late, perhaps too early.
    fn ahead_until(&self, other: &Self, now: u64) -> u64 {
        let mine = u128::from(self.freed) * u128::from(other.cost);
        let theirs = u128::from(other.freed) * u128::from(self.cost);
        if theirs <= mine {
            return u64::MAX;
        }
        let lead = mine as f64 * self.staleness(now) as f64;
        let behind = theirs as f64 * other.staleness(now) as f64;
        // Rounding must not make the moment late, so the lead is taken a little smaller than it is.
        let ticks = (lead * (1.0 - 1e-12) - behind) / (theirs - mine) as f64 * (1.0 - 1e-9);
        // A cast of a float saturates, and makes nothing of what is negative.
        now.saturating_add((ticks as u64).max(1))
    }
}

/// The product in 192 bits, high part first.
fn wide_product(left: u128, right: u64) -> (u128, u64) {
    let right = u128::from(right);
    let low = (left & u128::from(u64::MAX)) * right;
    let high = (left >> 64) * right + (low >> 64);
    (high, low as u64)
}

#[derive(Clone, Copy, Debug)]
struct Match {
    /// The slot of the winner.
    winner: Option<u32>,
    /// Until when this match and all below it stand.
    until: u64,
}

const NOBODY: Match = Match { winner: None, until: u64::MAX };

/// The players, each in a slot of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Tournament {
    players: Vec<Option<Player>>,
    free: Vec<u32>,
    /// A heap from index 1; the last `players.len()` are the players themselves.
    matches: Vec<Match>,
}

impl Tournament {
    /// Takes a player in; the slot is for [`Tournament::change`] and [`Tournament::leave`].
    pub(super) fn enter(&mut self, player: Player, now: u64) -> u32 {
        if self.free.is_empty() {
            self.grow(now);
        }
        let slot = self.free.pop().unwrap_or_default();
        self.put(slot, Some(player), now);
        slot
    }

    pub(super) fn change(&mut self, slot: u32, player: Player, now: u64) {
        if self.players.get(slot as usize).copied().flatten() != Some(player) {
            self.put(slot, Some(player), now);
        }
    }

    pub(super) fn leave(&mut self, slot: u32, now: u64) {
        self.put(slot, None, now);
        self.free.push(slot);
    }

    /// Who goes first.
    pub(super) fn best(&mut self, now: u64) -> Option<Player> {
        self.settle(1, now);
        let winner = self.matches.get(1)?.winner?;
        self.players[winner as usize]
    }

    fn grow(&mut self, now: u64) {
        let before = self.players.len();
        let after = (before * 2).max(2);
        self.players.resize(after, None);
        // Popped from the end: the low slots go out first.
        self.free.extend((before as u32..after as u32).rev());
        self.matches = vec![NOBODY; after * 2];
        for slot in 0..after {
            self.matches[after + slot].winner = self.players[slot].map(|_| slot as u32);
        }
        for node in (1..after).rev() {
            self.play(node, now);
        }
    }

    fn put(&mut self, slot: u32, player: Option<Player>, now: u64) {
        self.players[slot as usize] = player;
        let mut node = self.players.len() + slot as usize;
        self.matches[node].winner = player.map(|_| slot);
        while node > 1 {
            node /= 2;
            self.play(node, now);
        }
    }

    /// Plays the matches below `node` again whose time is up.
    fn settle(&mut self, node: usize, now: u64) {
        if self.matches.get(node).is_some_and(|found| found.until <= now) && node < self.players.len() {
            self.settle(node * 2, now);
            self.settle(node * 2 + 1, now);
            self.play(node, now);
        }
    }

    fn play(&mut self, node: usize, now: u64) {
        let (left, right) = (self.matches[node * 2], self.matches[node * 2 + 1]);
        let player = |found: Match| found.winner.and_then(|slot| self.players[slot as usize]);
        let (winner, until) = match (player(left), player(right)) {
            (Some(one), Some(other)) => match one.compare(&other, now) {
                Ordering::Greater => (right.winner, other.ahead_until(&one, now)),
                _ => (left.winner, one.ahead_until(&other, now)),
            },
            (Some(_), None) => (left.winner, u64::MAX),
            _ => (right.winner, u64::MAX),
        };
        self.matches[node] = Match { winner, until: until.min(left.until).min(right.until) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn products_are_exact_beyond_128_bits() {
        assert_eq!(wide_product(u128::MAX, u64::MAX), (u128::MAX - (1 << 64), 1));
        assert_eq!(wide_product(3, 5), (0, 15));
        assert_eq!(wide_product(1 << 100, 1 << 40), (1 << 76, 0));
    }

    #[derive(Clone, Debug)]
    enum Move {
        Enter(Player),
        Change(usize, Player),
        Leave(usize),
        Wait(u64),
    }

    /// Small numbers make ties, large ones use every bit.
    fn any_number() -> impl Strategy<Value = u64> + Clone {
        prop_oneof![4 => 1..7u64, 2 => 1..1_000u64, 1 => 1..u64::MAX, 1 => Just(u64::MAX)]
    }

    fn any_move() -> impl Strategy<Value = Move> {
        let player = (any_number(), any_number(), 0..40u64, 0..9u64)
            .prop_map(|(freed, cost, used, name)| Player { freed, cost, used, name });
        prop_oneof![
            3 => player.clone().prop_map(Move::Enter),
            2 => (0..40usize, player).prop_map(|(index, player)| Move::Change(index, player)),
            1 => (0..40usize).prop_map(Move::Leave),
            3 => any_number().prop_map(|ticks| Move::Wait(ticks.min(1 << 58))),
        ]
    }

    proptest! {
        #[test]
        fn the_winner_is_who_would_win_against_each(moves in proptest::collection::vec(any_move(), 1..80)) {
            let mut tournament = Tournament::default();
            let mut entered: Vec<(u32, Player)> = Vec::new();
            let mut now = 1u64;
            for (turn, step) in moves.into_iter().enumerate() {
                match step {
                    Move::Enter(mut player) => {
                        player.name = turn as u64;
                        player.used = player.used.min(now - 1);
                        entered.push((tournament.enter(player, now), player));
                    }
                    Move::Change(index, mut player) if !entered.is_empty() => {
                        let index = index % entered.len();
                        player.name = entered[index].1.name;
                        player.used = player.used.min(now - 1);
                        entered[index].1 = player;
                        tournament.change(entered[index].0, player, now);
                    }
                    Move::Leave(index) if !entered.is_empty() => {
                        let (slot, _) = entered.swap_remove(index % entered.len());
                        tournament.leave(slot, now);
                    }
                    Move::Wait(ticks) => now = now.saturating_add(ticks),
                    _ => {}
                }
                let expected = entered.iter().map(|(_, player)| *player).min_by(|a, b| a.compare(b, now));
                prop_assert_eq!(tournament.best(now), expected, "turn {} at {}", turn, now);
            }
        }
    }
}
