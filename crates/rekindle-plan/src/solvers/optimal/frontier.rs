//! The cheapest time for every budget.
