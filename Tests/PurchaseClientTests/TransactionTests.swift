import Testing

@testable import PurchaseClient

/// From StoreKit's word to the record and its user.
@Suite struct TransactionTests {
    var watched = WatchedJournal()

    /// Ann is logged in, and her payment of the record is under way.
    @discardableResult
    mutating func pay(_ key: RecordKey, as user: UserID = .ann, order: String?, product: String = coins)
        -> [JournalAction]
    {
        if watched.journal.session?.user != user { send(.loggedIn(user)) }
        send(.begun(key))
        send(.described(key, user: user, .details(product)))
        if let order { send(.ordered(key, order: order)) }
        send(.payRequested(key))
        return send(.stored(key, revision: watched.journal.records[key]?.revision ?? 0))
    }

    @discardableResult
    mutating func send(_ event: JournalEvent, _ place: SourceLocation = #_sourceLocation) -> [JournalAction] {
        let actions = watched.handle(event)
        #expect(watched.broken.isEmpty, sourceLocation: place)
        return actions
    }

    /// The app is killed, and starts with what the store has.
    mutating func restart(_ place: SourceLocation = #_sourceLocation) {
        watched = watched.restarted
        send(.launched, place)
    }

    func phase(_ key: RecordKey) -> PurchaseRecord.Phase? { watched.journal.records[key]?.phase }
    func user(_ key: RecordKey) -> UserID? { watched.journal.records[key]?.user }
    func transaction(_ key: RecordKey) -> String? { watched.journal.records[key]?.transaction }

    /// Goal: nothing is paid for that the store does not have (S4-14).
    /// Method: the store answers late, with another revision, and with an error.
    @Test mutating func writesBeforeItPays() {
        send(.loggedIn(.ann))
        send(.begun(.a))
        send(.described(.a, user: .ann, .coins))
        send(.ordered(.a, order: orderA))
        let asked = send(.payRequested(.a))
        #expect(asked.contains { if case .write(let record) = $0 { record.phase == .asked } else { false } })
        #expect(!asked.contains(.pay(.a)))
        let revision = watched.journal.records[.a]!.revision
        #expect(send(.stored(.a, revision: revision - 1)).isEmpty)
        #expect(send(.storeFailed(.a, revision: revision)).contains(.tell(.refused(.a, .notStored))))
        #expect(send(.stored(.a, revision: revision)).isEmpty, "the payment was refused")
        send(.payRequested(.a))
        #expect(send(.stored(.a, revision: watched.journal.records[.a]!.revision)) == [.pay(.a)])
        #expect(send(.payRequested(.a)) == [.tell(.refused(.a, .notPrepared))], "one payment of a record")
    }

    /// Goal: a user who is not logged in any more pays nothing.
    @Test mutating func theUserChangesBeforeThePayment() {
        send(.loggedIn(.ann))
        send(.begun(.a))
        send(.described(.a, user: .ann, .coins))
        send(.payRequested(.a))
        send(.loggedIn(.bob))
        let revision = watched.journal.records[.a]!.revision
        #expect(send(.stored(.a, revision: revision)).contains(.tell(.refused(.a, .otherUser))))
        #expect(send(.described(.a, user: .bob, .coins)) == [.tell(.refused(.a, .otherUser))])
        #expect(user(.a) == .ann)
    }

    /// Goal: the stages of a record set the columns that they should (S0-1 to S0-6).
    @Test mutating func stages() {
        send(.loggedIn(.ann))
        send(.begun(.a))
        #expect(watched.journal.records[.a]!.stage == .empty)
        #expect(watched.journal.records[.a]!.details == PurchaseDetails() && user(.a) == nil, "S0-2")
        send(.described(.a, user: .ann, .coins))
        let described = watched.journal.records[.a]!
        #expect(described.stage == .described && described.details == .coins && described.user == .ann, "S0-3")
        #expect(described.transaction == nil && described.proof == nil && !described.isFinished)
        send(.ordered(.a, order: orderA))
        send(.payRequested(.a))
        send(.stored(.a, revision: watched.journal.records[.a]!.revision))
        send(.described(.a, user: .ann, .details("other", country: "CHN")))
        let located = watched.journal.records[.a]!
        #expect(
            located.stage == .located && located.details == .details(coins, country: "CHN"), "S0-4: what is set stays")
        send(.returned(.a, .purchased(.of("1", .a))))
        let paid = watched.journal.records[.a]!
        #expect(paid.stage == .paid && paid.transaction == "1" && paid.proof == .signedTransaction("jws 1 1"), "S0-5")
        send(.posted(number: 1, .answered([.a: .safe])))
        #expect(!watched.journal.records[.a]!.isFinished)
        let finished = send(.finished(transaction: "1"))
        #expect(
            finished.contains { if case .write(let record) = $0 { record.stage == .finished } else { false } }, "S0-6")
        #expect(watched.journal.records.isEmpty && watched.written.isEmpty, "S1-21")
    }

    /// Goal: several pending purchases stand side by side, and none replaces another (S0-7, S4-24).
    @Test mutating func severalAtOnce() {
        pay(.a, order: orderA)
        pay(.b, order: orderB)
        #expect(send(.begun(.a)) == [.tell(.refused(.a, .keyTaken))])
        send(.returned(.b, .purchased(.of("2", .b))))
        send(.seen(.of("1", .a)))
        #expect(transaction(.a) == "1" && transaction(.b) == "2")
        restart()
        #expect(transaction(.a) == "1" && transaction(.b) == "2" && phase(.a) == .paid && phase(.b) == .paid)
    }

    /// Goal: what StoreKit calls failed, cancelled, or unknown is granted when the transaction comes all the same, with
    /// the details of the user's record (S0-15, S0-16, S4-21, S4-22).
    @Test(
        arguments: [PaymentAnswer.failed(transaction: nil), .failed(transaction: "1"), .cancelled, .unknown, .pending],
        [StoreTransaction.Token.a, .unknown])
    func comesAfterAll(answer: PaymentAnswer, token: StoreTransaction.Token) {
        for isKilled in [false, true] {
            var test = self
            test.pay(.a, order: orderA)
            test.send(.returned(.a, answer))
            #expect(test.phase(.a)?.waitsForTransaction == true)
            if isKilled {
                test.restart()
                test.send(.loggedIn(.ann))
            }
            let actions = test.send(.seen(.of("1", token)))
            #expect(test.transaction(.a) == "1" && test.phase(.a) == .paid && test.user(.a) == .ann)
            let posts = actions.compactMap { if case .post(let post) = $0 { post } else { nil } }
            #expect(posts.first?.records.first?.order == orderA && posts.first?.user == .ann)
        }
    }

    /// Goal: the six orders of observing, looking into the queue and paying lead to the same end, observed twice or
    /// once (S4-1 to S4-6, S4-19). An unfinished purchase of the same product lies in the queue.
    @Test(arguments: [0, 1, 2, 3, 4, 5], [1, 2])
    func callOrders(order: Int, observers: Int) {
        for token in [StoreTransaction.Token.none, .some(AccountToken(orderB)!)] {
            var test = self
            let old = StoreTransaction.of("1", token == .none ? .none : .a)
            let new = StoreTransaction.of("2", token)
            test.pay(.a, order: token == .none ? nil : orderA)
            test.restart()
            test.send(.loggedIn(.ann))
            // What was bought so far is shown by each observer and by each look into the queue.
            var queue = [old]
            func show(_ test: inout TransactionTests, times: Int) {
                for _ in 0..<times { for transaction in queue { test.send(.seen(transaction)) } }
            }
            for step in [
                ["o", "q", "p"], ["o", "p", "q"], ["q", "o", "p"], ["q", "p", "o"], ["p", "o", "q"], ["p", "q", "o"],
            ][order] {
                switch step {
                case "o": show(&test, times: observers)
                case "q": show(&test, times: 1)
                default:
                    test.pay(.b, order: token == .none ? nil : orderB)
                    queue.append(new)
                    if order.isMultiple(of: 2) { show(&test, times: observers) }
                    test.send(.returned(.b, .purchased(new)))
                }
            }
            #expect(test.transaction(.a) == "1" && test.transaction(.b) == "2", "order \(order), \(token)")
            #expect(test.watched.journal.records.count == 2)
        }
    }

    /// Goal: with a payment under way, a purchase without a token waits for the payment's answer (S4-8).
    @Test mutating func anOldPurchaseDoesNotTakeTheNewRecord() {
        pay(.a, order: nil)
        restart()
        pay(.b, as: .bob, order: nil)
        send(.seen(.of("1")))
        #expect(transaction(.a) == nil && transaction(.b) == nil)
        send(.seen(.of("2")))
        send(.returned(.b, .purchased(.of("2"))))
        #expect(transaction(.a) == "1" && user(.a) == .ann && transaction(.b) == "2" && user(.b) == .bob)
        #expect(watched.journal.records.count == 2)
    }

    /// Goal: another user's answered record takes no purchase; another user's open question does.
    @Test(arguments: [PaymentAnswer.cancelled, .failed(transaction: nil), .unknown, .pending])
    mutating func anotherUsersRecord(answer: PaymentAnswer) {
        pay(.a, order: nil)
        send(.returned(.a, answer))
        send(.loggedIn(.bob))
        send(.seen(.of("1")))
        let isOpen = answer == .unknown || answer == .pending
        #expect((transaction(.a) == "1") == isOpen)
        #expect((user(RecordKey(transaction: "1")) == .bob) == !isOpen)
    }

    /// Goal: two users wait for a purchase of one product without a token: neither record is guessed. The server
    /// decides with the installation's token and the orders.
    @Test mutating func twoUsersWait() {
        pay(.a, order: nil)
        send(.returned(.a, .pending))
        pay(.b, as: .bob, order: nil)
        send(.returned(.b, .pending))
        send(.seen(.of("1")))
        #expect(transaction(.a) == nil && transaction(.b) == nil)
        #expect(watched.journal.records[RecordKey(transaction: "1")]?.isAdopted == true)
    }

    /// Goal: the token decides, whoever is logged in, and StoreKit's answer to another user's tap changes nothing.
    @Test mutating func theTokenDecides() {
        pay(.a, order: orderA)
        send(.returned(.a, .pending))
        pay(.b, as: .bob, order: orderB)
        // The product is owned already: StoreKit shows the earlier purchase.
        send(.returned(.b, .purchased(.of("1", .a))))
        #expect(transaction(.a) == "1" && user(.a) == .ann && transaction(.b) == nil && phase(.b) == .failed)
        // A renewal carries the token of the first purchase.
        send(.seen(.of("3", .a)))
        #expect(user(RecordKey(transaction: "3")) == .ann)
        #expect(watched.journal.records[RecordKey(transaction: "3")]?.order == orderA)
    }

    /// Goal: any success is posted, with a record or without one, and without a user it waits for one (S0-17, S1-25).
    @Test mutating func withoutARecord() {
        send(.launched)
        let key = RecordKey(transaction: "1")
        #expect(!send(.seen(.of("1"))).isPosting)
        #expect(phase(key) == .unclaimed && user(key) == nil)
        restart()
        let login = send(.loggedIn(.bob))
        #expect(login.isPosting && user(key) == .bob && phase(key) == .paid)
        // Another user never posts it, unless the server says that it may be another's.
        send(.loggedIn(.ann))
        #expect(user(key) == .bob)
        #expect(!send(.foregrounded).isPosting)
        let number = send(.loggedIn(.bob)).postNumber
        #expect(!send(.posted(number: number, .answered([key: .anothers]))).isPosting)
        #expect(user(key) == nil && phase(key) == .unclaimed)
        #expect(send(.loggedIn(.ann)).isPosting && user(key) == .ann)
    }

    /// Goal: a product that this server does not sell is neither recorded nor finished.
    @Test mutating func foreignProducts() {
        watched = WatchedJournal(PurchaseJournal(policy: JournalPolicy(products: [coins])))
        send(.loggedIn(.ann))
        send(.begun(.a))
        #expect(send(.seen(.of("9", product: "other"))).isEmpty)
        #expect(send(.seenFailed(transaction: "9", product: "other")).isEmpty)
        #expect(send(.finished(transaction: "9")).isEmpty)
        #expect(send(.described(.a, user: .ann, .details("other"))) == [.tell(.refused(.a, .foreignProduct))])
    }

    /// Goal: a payment that really failed is finished at its third report, so that the product can be bought again, and
    /// a later success of the same transaction still counts (S0-13, S0-14, S0-18, S0-19, S4-18, S4-25).
    @Test(arguments: [true, false])
    mutating func reallyFailed(hasRecord: Bool) {
        let key = hasRecord ? RecordKey.a : RecordKey(transaction: "1")
        if hasRecord {
            pay(.a, order: orderA)
            send(.returned(.a, .failed(transaction: "1")))
        } else {
            send(.seenFailed(transaction: "1", product: coins))
        }
        restart()
        #expect(!send(.seenFailed(transaction: "1", product: coins)).contains(.finishFailed(transaction: "1")))
        restart()
        #expect(send(.seenFailed(transaction: "1", product: coins)).contains(.finishFailed(transaction: "1")))
        send(.finished(transaction: "1"))
        #expect((phase(key) == .failed) == hasRecord, "the user's record stays")
        send(.loggedIn(.ann))
        send(.seen(.of("1", .unknown)))
        #expect(phase(key) == .paid && transaction(key) == "1")
    }

    /// Goal: a finish that fails changes nothing, and a transaction that comes again after it was finished is posted
    /// again (S4-16, S4-17).
    @Test mutating func finishingFails() {
        pay(.a, order: orderA)
        send(.returned(.a, .purchased(.of("1", .a))))
        #expect(send(.posted(number: 1, .answered([.a: .safe]))).contains(.finish(transaction: "1")))
        #expect(send(.finishFailed(transaction: "1")).isEmpty)
        #expect(phase(.a) == .safe)
        #expect(send(.foregrounded).contains(.finish(transaction: "1")))
        #expect(send(.seen(.of("1", .a))) == [.finish(transaction: "1")])
        watched = watched.restarted
        #expect(send(.launched).contains(.finish(transaction: "1")))
        send(.finished(transaction: "1"))
        send(.loggedIn(.ann))
        #expect(send(.seen(.of("1", .a))).isPosting)
    }

    /// Goal: StoreKit finishing a transaction by somebody else's call removes nothing.
    @Test mutating func finishedByOthers() {
        pay(.a, order: orderA)
        send(.returned(.a, .purchased(.of("1", .a))))
        #expect(send(.finished(transaction: "1")).isEmpty)
        #expect(phase(.a) == .paid)
    }

    /// Goal: a start after a kill between the two writes of one step goes on with one record.
    @Test mutating func killedWhileARecordTookATransaction() {
        send(.launched)
        send(.seen(.of("1")))
        let entry = watched.written[RecordKey(transaction: "1")]!
        var record = PurchaseRecord(key: .a, sequence: 9)
        record.user = .ann
        record.phase = .paid
        record.transaction = "1"
        record.proof = entry.proof
        watched = WatchedJournal(PurchaseJournal(records: [entry, record]))
        let launched = watched.handle(.launched)
        #expect(
            launched.contains(.erase(entry.key)) && watched.journal.records.keys.sorted { $0.text < $1.text } == [.a])
    }
}

extension [JournalAction] {
    var isPosting: Bool { contains { if case .post = $0 { true } else { false } } }
    /// The number of the post.
    var postNumber: Int {
        for case .post(let post) in self { return post.number }
        return 0
    }
    /// The keys of the post's records.
    var postedKeys: [RecordKey] {
        for case .post(let post) in self { return post.records.map(\.key) }
        return []
    }
    /// The number and the seconds of the wake.
    var wake: (number: Int, seconds: Int)? {
        for case .wake(let number, let seconds) in self { return (number, seconds) }
        return nil
    }
}
