import Testing

@testable import PurchaseClient

/// Every two events after each other, in each phase, and a kill between any two actions of them.
@Suite struct PairsTests {
    /// Goal: no two events break a rule, wherever the app is killed: each start goes on, and the purchase ends granted,
    /// finished once by the server's word, with nothing left.
    /// Method: each phase, each event, a kill after each number of the event's actions or none, each second event; then
    /// a start in a world that works, with both users and the transaction that Apple sold.
    @Test(arguments: PurchaseRecord.Phase.allCases.filter { $0 != .finished })
    func everyTwoEvents(phase: PurchaseRecord.Phase) {
        let rows = TableTests.rows(phase)
        var ends: Set<WatchedJournal> = []
        for first in rows {
            let before = TableTests.watched(phase)
            let event = first.event(before.journal)
            var after = before
            let actions = after.handle(event)
            var states = [after]
            for count in 0..<actions.count {
                states.append(before.killed(afterActions: Array(actions.prefix(count))))
            }
            for state in states {
                if !ends.insert(state.restarted).inserted, state != after { continue }
                for second in rows {
                    var end = state
                    _ = end.handle(second.event(state.journal))
                    #expect(end.broken.isEmpty, "\(first.name), then \(second.name): \(end.broken)")
                    ends.insert(end.restarted)
                }
            }
        }
        #expect(ends.count > 20)
        for end in ends {
            var recovered = end
            let finished = recovered.recover()
            let left = recovered.journal.inOrder.filter { $0.proof != nil }
            let isEnded = recovered.broken.isEmpty && finished && left.isEmpty
            #expect(isEnded, "\(end.written.values.map { "\($0)" }) leads to \(left), \(recovered.broken)")
        }
    }
}

extension WatchedJournal {
    /// The journal after a kill when these actions were done.
    func killed(afterActions actions: [JournalAction]) -> WatchedJournal {
        var records = written
        for action in actions {
            switch action {
            case .write(let record): records[record.key] = record
            case .erase(let key): records[key] = nil
            default: break
            }
        }
        var started = WatchedJournal(
            PurchaseJournal(records: Array(records.values), installationToken: installationToken))
        _ = started.handle(.launched)
        _ = started.handle(.loggedIn(.ann))
        return started
    }

    /// A start in a world that works: both users log in, Apple shows the transactions that are not finished, the server
    /// grants what it is shown.
    ///
    /// - Returns: whether transaction 1 was finished.
    mutating func recover() -> Bool {
        var finished: Set<String> = []
        var queue = handle(.launched)
        for user in [UserID.ann, .bob, .ann, .bob] {
            queue += handle(.loggedIn(user))
            queue += handle(.foregrounded)
            var steps = 0
            while !queue.isEmpty, steps < 500 {
                steps += 1
                switch queue.removeFirst() {
                case .scan:
                    if !finished.contains("1") { queue += handle(.seen(.of("1", .a))) }
                case .post(let post):
                    let answers = post.records.map { ($0.key, RecordAnswer.safe) }
                    queue += handle(.posted(number: post.number, .answered(Dictionary(uniqueKeysWithValues: answers))))
                case .finish(let transaction):
                    finished.insert(transaction)
                    queue += handle(.finished(transaction: transaction))
                default: break
                }
            }
        }
        return finished.contains("1")
    }
}
