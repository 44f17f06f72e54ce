//! The sequencer: one holder at a time, nobody stranded, and sleepers in its word that disturb neither.

#[cfg(not(loom))]
#[test]
#[ignore = "needs RUSTFLAGS=\"--cfg loom\""]
fn models() {}

#[cfg(loom)]
mod models {
    use fanout::__loom::Sequencer;
    use fanout_loom_tests::{Model, joined, role, step};
    use loom::sync::Arc;

    /// Every order in which `0..count` can be.
    fn permutations(count: usize) -> Vec<Vec<usize>> {
        fanout_loom_tests::interleavings(&vec![1; count])
    }

    /// Roles that each enter once, and number themselves in the state and in a cell of the sequencer: two that are inside at once would
    /// race for both, one that is stranded would be a deadlock. The numbers that they get are the outcome.
    fn contend(model: Model, publishers: usize) {
        model.check(permutations(publishers), move || {
            let sequencer = Arc::new(Sequencer::new(0));
            let cell = Arc::new(sequencer.cell(0));
            let enter =
                |(sequencer, cell): (Arc<Sequencer<usize>>, Arc<fanout::__loom::Sequenced<usize>>)| {
                    let mut guard = sequencer.lock();
                    let (state, mut key) = guard.open();
                    let place = *state;
                    *state += 1;
                    let copy = cell.open(&mut key);
                    assert_eq!(*copy, place);
                    *copy += 1;
                    assert!(!guard.unlock(), "nobody sleeps");
                    place
                };
            let roles: Vec<_> = (0..publishers)
                .map(|_| (sequencer.clone(), cell.clone()))
                .map(|its| role(move || enter(its)))
                .collect();
            let places: Vec<_> = roles.into_iter().map(joined).collect();
            assert_eq!(*sequencer.try_lock().expect("everybody left"), publishers);
            places
        });
    }

    #[test]
    fn two() {
        contend(Model::new("sequencer, 2 publishers", 100), 2);
    }

    #[test]
    fn three() {
        contend(Model::new("sequencer, 3 publishers", 1_000).bound(3), 3);
    }

    /// A worker that comes and goes changes the word under those who wait on it, and is seen by whoever leaves meanwhile.
    #[test]
    fn sleepers_come_and_go() {
        let expected = [[false, false], [false, true], [true, false], [true, true]];
        Model::new("sequencer, 2 publishers and a sleeper", 1_000).bound(3).check(expected, || {
            let sequencer = Arc::new(Sequencer::new(0));
            let publishers = [(); 2].map(|()| {
                let sequencer = sequencer.clone();
                role(move || {
                    let mut guard = sequencer.lock();
                    *guard += 1;
                    guard.unlock()
                })
            });
            let sleeper = role({
                let sequencer = sequencer.clone();
                move || {
                    sequencer.add_sleeper();
                    step(|| sequencer.remove_sleeper());
                }
            });
            let told = publishers.map(joined);
            joined(sleeper);
            let guard = sequencer.try_lock().expect("everybody left");
            assert_eq!(*guard, 2);
            assert!(!guard.unlock(), "no sleeper is left");
            told
        });
    }

    /// Who may not wait is refused only while somebody is inside, and disturbs nobody.
    #[test]
    fn try_lock() {
        Model::new("sequencer, try_lock", 50).check([0, 1, 2], || {
            let sequencer = Arc::new(Sequencer::new(0));
            let waiting = role({
                let sequencer = sequencer.clone();
                move || *step(|| sequencer.lock()) += 1
            });
            let trying = role({
                let sequencer = sequencer.clone();
                move || {
                    step(|| sequencer.try_lock()).map(|mut guard| {
                        let place = *guard;
                        *guard += 1;
                        place
                    })
                }
            });
            joined(waiting);
            let place = joined(trying);
            assert_eq!(*sequencer.try_lock().expect("everybody left"), 1 + usize::from(place.is_some()));
            place.unwrap_or(2)
        });
    }
}
