use super::*;

const OWN: WriterId = WriterId { store: StoreId([1; 16]), open: 2 };
const EARLIER: WriterId = WriterId { store: StoreId([1; 16]), open: 1 };
const NAMESPACE: NamespaceId = NamespaceId([3; 16]);

/// Notes with removals of an earlier open, the numbers of those that are not applied here among them.
fn notes(earlier: &[(u64, HereState)]) -> Arc<RemovalNotes> {
    let pending = earlier.iter().map(|(number, here)| {
        let (id, here) = (RemovalId { by: EARLIER, number: *number }, *here);
        let (namespace, hashes, there) = (NAMESPACE, Vec::new(), ThereState::Wanted);
        (id, PendingRemoval { namespace, hashes, here, there, waiter: None })
    });
    let view = NotedView { applied: Applied::default(), polled_at_ms: None, changes: 0 };
    let state = NotesState {
        now: view.clone(),
        stored: view,
        named: 0,
        pending: pending.collect(),
        next: 1,
        generation: 0,
        is_closed: false,
    };
    let (state, storing) = (Mutex::new(state), Mutex::default());
    Arc::new(RemovalNotes { store: OWN.store, own: OWN, state, storing })
}

fn applied(notes: &RemovalNotes) -> u64 {
    notes.state.lock().now.applied.number(OWN)
}

#[test]
fn a_removal_is_applied_only_when_all_before_it_are() {
    let notes = notes(&[]);
    let [one, two, three] = [(); 3].map(|()| notes.begin(NAMESPACE, &[]).unwrap());
    two.end_durable();
    assert_eq!(applied(&notes), 0);
    one.end_durable();
    assert_eq!(applied(&notes), 2);
    drop(three);
    assert_eq!((applied(&notes), notes.failed_here().len()), (2, 1), "a part is not durable");
    notes.note_applied(notes.failed_here()[0].id);
    assert_eq!((applied(&notes), notes.pending_count()), (3, 3));
}

#[test]
fn a_removal_that_is_held_up_here_is_published_before_later_ones() {
    let notes = notes(&[]);
    let one = notes.begin(NAMESPACE, &[]).unwrap();
    let two = notes.begin(NAMESPACE, &[]).unwrap();
    let numbers: Vec<u64> = notes.unpublished().iter().map(|removal| removal.id.number).collect();
    assert_eq!(numbers, [1, 2]);
    notes.note_published(&notes.unpublished(), &Ok(()));
    assert_eq!((applied(&notes), notes.pending_count()), (0, 0));
    one.end_durable();
    two.end_durable();
    let named = notes.state.lock().now.applied.clone();
    notes.note_named(&named);
    assert_eq!((applied(&notes), notes.state.lock().pending.len()), (2, 0));
}

#[test]
fn a_removal_ends_when_packs_name_it_and_all_before_it() {
    let notes = notes(&[]);
    let [one, two, three] = [(); 3].map(|()| notes.begin(NAMESPACE, &[]).unwrap());
    let outcomes = [&one, &two, &three].map(|removal| notes.outcome(removal.id()));
    let ended = || outcomes.iter().map(|outcome| outcome.try_recv().ok()).collect::<Vec<_>>();
    let name = || {
        let applied = notes.state.lock().now.applied.clone();
        notes.note_named(&applied);
    };
    notes.note_published(&notes.unpublished(), &Ok(()));
    two.end_durable();
    name();
    notes.end_unnamed(&Ok(()));
    assert_eq!(ended(), [None, None, None], "the first one is still being carried out");
    one.end_durable();
    assert_eq!(ended(), [None, None, None], "packs do not name them yet");
    name();
    assert_eq!(ended(), [Some(Ok(())), Some(Ok(())), None]);
    drop(three);
    name();
    notes.end_unnamed(&Ok(()));
    assert!(matches!(ended()[2], Some(Err(Incomplete::Unnamed(_)))), "it failed here");
}

#[test]
fn the_location_counts_as_applied_only_without_open_removals_of_earlier_opens() {
    let other = RemovalId { by: WriterId { store: StoreId([9; 16]), open: 7 }, number: 4 };
    let at_location: Applied = [other].into_iter().collect();
    let none = BTreeSet::new();
    let held = notes(&[(1, HereState::Applied), (2, HereState::Failed)]);
    assert!(!held.note_location(&at_location, &none, Some(Duration::from_millis(5))));
    assert!(!held.is_applied(other) && held.polled_at().is_none());
    held.note_applied(RemovalId { by: EARLIER, number: 2 });
    assert!(
        held.note_location(&at_location, &none, Some(Duration::from_millis(5)))
            && held.is_applied(other)
    );
    assert!(held.is_applied(RemovalId { by: EARLIER, number: 2 }));
    assert!(held.note_location(&at_location, &none, None), "the time is unknown");
    assert_eq!(held.polled_at(), Some(Duration::from_millis(5)));
    assert!(held.note_location(&Applied::default(), &none, None) && !held.is_applied(other));
    assert!(held.is_applied(RemovalId { by: EARLIER, number: 2 }), "pending removals stay");
}

#[test]
fn removals_of_a_store_with_an_unread_list_count_only_as_far_as_before() {
    let id =
        |store, number| RemovalId { by: WriterId { store: StoreId([store; 16]), open: 7 }, number };
    let notes = notes(&[]);
    let note = |ids: &[RemovalId], unread: &[u8]| {
        let unread = unread.iter().map(|store| StoreId([*store; 16])).collect();
        assert!(notes.note_location(&ids.iter().copied().collect(), &unread, None));
    };
    note(&[id(8, 1), id(9, 1)], &[]);
    note(&[id(8, 3), id(9, 3), id(10, 3)], &[9, 10]);
    assert!(notes.is_applied(id(8, 3)));
    assert!(notes.is_applied(id(9, 1)) && !notes.is_applied(id(9, 2)));
    assert!(!notes.is_applied(id(10, 1)));
    note(&[id(8, 3), id(9, 3), id(10, 3)], &[]);
    assert!(notes.is_applied(id(9, 3)) && notes.is_applied(id(10, 3)));
}

#[test]
fn removals_beyond_the_bounds_are_widened_and_then_refused() {
    let notes = notes(&[]);
    let hashes = vec![ChainHash([7; 32]); 100_000];
    let kept: Vec<_> = (0..4).map(|_| notes.begin(NAMESPACE, &hashes).unwrap()).collect();
    let removals = notes.unpublished();
    assert_eq!(removals.iter().filter(|removal| removal.hashes.is_empty()).count(), 2);
    assert!(RemovalRecord::pending_bytes(&removals) <= MAX_PENDING_BYTES);
    let more: Vec<_> = (4..MOST_PENDING).map(|_| notes.begin(NAMESPACE, &[]).unwrap()).collect();
    let error = notes.begin(NAMESPACE, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Each of them would look at all others.
    [kept, more].into_iter().flatten().for_each(std::mem::forget);
}
