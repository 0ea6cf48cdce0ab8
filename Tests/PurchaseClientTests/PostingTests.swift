import Testing

@testable import PurchaseClient

/// Rounds of posts: when they begin, how often they try, what ends them.
@Suite struct PostingTests {
    var watched = WatchedJournal()

    @discardableResult
    mutating func send(_ event: JournalEvent, _ place: SourceLocation = #_sourceLocation) -> [JournalAction] {
        let actions = watched.handle(event)
        #expect(watched.broken.isEmpty, sourceLocation: place)
        return actions
    }

    func record(_ key: RecordKey) -> PurchaseRecord { watched.journal.records[key]! }

    /// Ann's purchases with these transaction ids, each owed to the server, and nobody logged in.
    mutating func owe(_ transactions: [String], to user: UserID = .ann, bytes: Int = 10) {
        var records: [PurchaseRecord] = Array(watched.journal.records.values)
        for transaction in transactions {
            var record = PurchaseRecord(key: RecordKey(transaction)!, sequence: UInt64(records.count + 1))
            record.user = user
            record.phase = .paid
            record.details.product = coins
            record.order = orderA
            record.transaction = transaction
            record.proof = .signedTransaction(String(repeating: "x", count: bytes))
            records.append(record)
        }
        watched = WatchedJournal(PurchaseJournal(records: records))
        send(.launched)
    }

    /// Goal: five tries within a minute, then the record is kept, and the next occasion begins again (S3-30, S3-31,
    /// S3-32, S3-37, S1-24, P37).
    @Test(
        arguments: [
            PostAnswer.none, .refused(status: 500), .refused(status: 503), .refused(status: 400), .refused(status: 413),
            .refused(status: 422), .refused(status: 403), .refused(status: 408), .refused(status: 429), .answered([:]),
            .answered([RecordKey("1")!: .refused]),
            .answered([RecordKey("1")!: RecordAnswer(status: 503, isSafeToFinish: true)]),
        ],
        [JournalEvent.foregrounded, .shopOpened, .loggedIn(.ann), .begun(.b)])
    mutating func fiveTries(answer: PostAnswer, occasion: JournalEvent) {
        owe(["1"])
        var actions = send(.loggedIn(.ann))
        var seconds = 0
        for attempt in 1...5 {
            #expect(actions.postedKeys.map(\.text) == ["1"], "try \(attempt)")
            actions = send(.posted(number: actions.postNumber, answer))
            #expect(record(RecordKey("1")!).phase == .paid)
            guard attempt < 5 else { break }
            let wake = actions.wake!
            seconds += wake.seconds
            #expect(send(.woke(number: wake.number + 1)).isEmpty)
            actions = send(.woke(number: wake.number))
        }
        #expect(seconds <= 60 && actions.wake == nil)
        #expect(actions.contains(.tell(.kept(RecordKey("1")!))) && record(RecordKey("1")!).failures == 1, "S0-13")
        #expect(send(occasion).postedKeys.map(\.text) == ["1"])
    }

    /// Goal: failures are counted to three, the record is posted for ever, and it blocks no product (S0-14, S0-19).
    @Test mutating func countsToThree() {
        owe(["1"])
        send(.loggedIn(.ann))
        for round in 1...6 {
            #expect(watched.journal.unsettled(of: .ann).isEmpty == (round > 3))
            var actions = send(.foregrounded)
            if actions.postNumber == 0 { actions = send(.posted(number: watched.journal.round.number, .none)) }
            while !actions.contains(.tell(.kept(RecordKey("1")!))) {
                if let wake = actions.wake { actions = send(.woke(number: wake.number)) }
                actions = send(.posted(number: actions.postNumber, .none))
            }
            #expect(record(RecordKey("1")!).failures == UInt8(min(round, 3)))
        }
        #expect(send(.foregrounded).isPosting)
    }

    /// Goal: an occasion during a pause does not wait for it, and the old alarm rings for nobody.
    @Test mutating func anOccasionEndsAPause() {
        owe(["1"])
        let wake = send(.posted(number: send(.loggedIn(.ann)).postNumber, .none)).wake!
        #expect(send(.foregrounded).isPosting)
        #expect(send(.woke(number: wake.number)).isEmpty)
    }

    /// Goal: `Retry-After` is respected whatever happens, until another user logs in.
    @Test(arguments: [429, 503]) mutating func retryAfter(status: Int) {
        owe(["1"])
        owe(["2"], to: .bob)
        let answer = PostAnswer.refused(status: status, retryAfter: 40)
        let wake = send(.posted(number: send(.loggedIn(.ann)).postNumber, answer)).wake!
        #expect(wake.seconds == 40)
        for event in [JournalEvent.foregrounded, .shopOpened, .loggedIn(.ann), .begun(.a)] {
            #expect(!send(event).isPosting, "\(event)")
        }
        var other = self
        #expect(send(.woke(number: wake.number)).postedKeys.map(\.text) == ["1"])
        #expect(other.send(.loggedIn(.bob)).postedKeys.map(\.text) == ["2"])
        #expect(other.send(.woke(number: wake.number)).isEmpty)
    }

    /// Goal: after 401 nothing is posted until a login (S1-23).
    @Test mutating func waitsForLogin() {
        owe(["1"])
        let refused = send(.posted(number: send(.loggedIn(.ann)).postNumber, .refused(status: 401)))
        #expect(refused == [.tell(.waitsForLogin(.ann))] && record(RecordKey("1")!).failures == 0)
        for event in [JournalEvent.foregrounded, .shopOpened, .begun(.a), .seen(.of("1", signed: 2))] {
            #expect(!send(event).isPosting, "\(event)")
        }
        #expect(send(.loggedIn(.ann)).isPosting)
    }

    /// Goal: only the logged-in user's records are posted, with the installation's token (S1-23, S1-25).
    @Test mutating func accountsOfOneDevice() {
        owe(["1", "3"])
        owe(["2"], to: .bob)
        send(.installationIssued(token: "installation"))
        let ann = send(.loggedIn(.ann))
        #expect(ann.postedKeys.map(\.text) == ["1", "3"])
        for case .post(let post) in ann { #expect(post.user == .ann && post.installationToken == "installation") }
        // Ann's answer comes after Bob has logged in: what is safe is safe, everything else waits for Ann.
        #expect(send(.loggedIn(.bob)).postedKeys.map(\.text) == ["2"])
        let late = send(
            .posted(number: ann.postNumber, .answered([RecordKey("1")!: .safe, RecordKey("3")!: .stored])))
        #expect(late.contains(.finish(transaction: "1")) && !late.isPosting)
        #expect(record(RecordKey("1")!).phase == .safe && record(RecordKey("3")!).phase == .paid)
        #expect(!send(.loggedOut).isPosting)
        #expect(!send(.foregrounded).isPosting)
    }

    /// Goal: one batch has at most 50 records and 4 MiB, and the next follows its answer at once.
    @Test mutating func batches() {
        owe((1...60).map { "\($0)" })
        var actions = send(.loggedIn(.ann))
        #expect(actions.postedKeys.map(\.text) == (1...50).map { "\($0)" })
        let safe = Dictionary(uniqueKeysWithValues: actions.postedKeys.map { ($0, RecordAnswer.safe) })
        actions = send(.posted(number: actions.postNumber, .answered(safe)))
        #expect(actions.postedKeys.map(\.text) == (51...60).map { "\($0)" })

        watched = WatchedJournal()
        owe(["1", "2", "3"], bytes: 3 << 20)
        #expect(send(.loggedIn(.ann)).postedKeys.map(\.text) == ["1"])
    }

    /// Goal: one record that the server cannot read keeps no other from being granted.
    @Test(arguments: [400, 413, 422]) mutating func onePoisonedRecord(status: Int) {
        owe(["1", "2", "3"])
        var actions = send(.loggedIn(.ann))
        actions = send(.posted(number: actions.postNumber, .refused(status: status)))
        var posted: [String] = []
        for _ in 0..<3 {
            let key = actions.postedKeys[0]
            posted.append(key.text)
            let answer = key.text == "1" ? PostAnswer.refused(status: status) : .answered([key: .safe])
            actions = send(.posted(number: actions.postNumber, answer))
            if let wake = actions.wake { actions = send(.woke(number: wake.number)) }
        }
        #expect(posted == ["1", "2", "3"])
        #expect(record(RecordKey("1")!).phase == .paid && record(RecordKey("2")!).phase == .safe)
        #expect(record(RecordKey("3")!).phase == .safe)
    }

    /// Goal: a stored proof is asked about for a limited time, then posted again at the next occasion (S3-29, S3-41).
    @Test mutating func polls() {
        let key = RecordKey("1")!
        owe(["1"])
        var actions = send(.posted(number: send(.loggedIn(.ann)).postNumber, .answered([key: .stored])))
        #expect(record(key).phase == .accepted && record(key).receipt == "r")
        for seconds in [0, 5, 15] {
            #expect(actions.contains(.poll(key, receipt: "r", afterSeconds: seconds)))
            actions = send(.polled(key, seconds == 0 ? nil : .stored))
        }
        #expect(actions.contains(.tell(.kept(key))) && record(key).failures == 1)
        let again = send(.foregrounded)
        #expect(again.postedKeys == [key])
        #expect(send(.posted(number: again.postNumber, .answered([key: .safe]))).contains(.tell(.settled(key))))
    }

    /// Goal: a credential that ends during the questions ends them.
    @Test mutating func pollWithoutCredential() {
        let key = RecordKey("1")!
        owe(["1"])
        send(.posted(number: send(.loggedIn(.ann)).postNumber, .answered([key: .stored])))
        #expect(send(.polled(key, RecordAnswer(status: 401, isSafeToFinish: true))) == [.tell(.waitsForLogin(.ann))])
        #expect(record(key).phase == .accepted)
    }

    /// Goal: a purchase that came without an order asks for one afterwards, once, and is posted with it (S2-17).
    @Test mutating func asksForAnOrderAfterwards() {
        send(.launched)
        send(.loggedIn(.ann))
        let key = RecordKey(transaction: "1")
        var actions = send(.posted(number: send(.seen(.of("1"))).postNumber, .answered([key: .stored])))
        #expect(actions.contains(.placeOrder(key, transaction: "1")))
        actions = send(.ordered(key, order: orderB))
        #expect(actions.isPosting && record(key).order == orderB)
        actions = send(.posted(number: actions.postNumber, .answered([key: .stored])))
        #expect(!actions.contains { if case .placeOrder = $0 { true } else { false } })
    }

    /// Goal: an app receipt that is older than the purchase is refreshed and posted again.
    @Test mutating func refreshesTheReceipt() {
        let key = RecordKey("1")!
        owe(["1"])
        let answer = RecordAnswer(status: 202, isSafeToFinish: false, receipt: "r", needsFreshReceipt: true)
        let actions = send(.posted(number: send(.loggedIn(.ann)).postNumber, .answered([key: answer])))
        #expect(actions.contains(.refreshReceipt(key)))
        var fresh = StoreTransaction.of("1", .unknown)
        fresh.proof = .appReceipt("AAAA")
        #expect(send(.seen(fresh)).postedKeys == [key] && record(key).proof == .appReceipt("AAAA"))
        fresh.proof = .transactionOnly
        send(.seen(fresh))
        #expect(record(key).proof == .appReceipt("AAAA"), "a proof is never given away for none")
    }

    /// Goal: payments without a transaction ask what became of their orders. The answer says for which transaction they
    /// wait, and removes nothing.
    @Test(arguments: [PurchaseRecord.Phase.pending, .unknown, .failed, .cancelled])
    mutating func asksAboutOrders(phase: PurchaseRecord.Phase) {
        var record = PurchaseRecord(key: .a, sequence: 1)
        record.user = .ann
        record.phase = phase
        record.details = .coins
        record.order = orderA
        watched = WatchedJournal(PurchaseJournal(records: [record]))
        send(.launched)
        #expect(!send(.loggedIn(.bob)).contains(.askOrder(.a, order: orderA)))
        #expect(send(.loggedIn(.ann)).contains(.askOrder(.a, order: orderA)))
        #expect(send(.shopOpened).contains(.askOrder(.a, order: orderA)))
        var other = self
        #expect(send(.orderGranted(.a, transaction: "1")).contains(.tell(.settled(.a))))
        #expect(!send(.shopOpened).contains(.askOrder(.a, order: orderA)))
        send(.seen(.of("2")))
        #expect(self.record(.a).phase == phase)
        send(.seen(.of("1", .unknown)))
        #expect(self.record(.a).phase == .paid)
        // The transaction was seen before, and nobody knew whose it was.
        other.send(.loggedOut)
        other.send(.seen(.of("1", .some(AccountToken(orderB)!))))
        other.send(.orderGranted(.a, transaction: "1"))
        #expect(other.record(.a).transaction == "1" && other.record(.a).phase == .paid)
        #expect(other.watched.journal.records.count == 1)
    }

    /// Goal: what the store could not write is written at the next occasion, and is posted all the same.
    @Test mutating func aFullDisk() {
        send(.launched)
        send(.loggedIn(.ann))
        #expect(send(.seen(.of("1"))).isPosting)
        let key = RecordKey(transaction: "1")
        #expect(send(.storeFailed(key, revision: record(key).revision)).isEmpty)
        #expect(send(.foregrounded).contains(.write(record(key))))
        send(.stored(key, revision: record(key).revision))
        #expect(!send(.foregrounded).contains(.write(record(key))))
    }

    /// Goal: what cannot be read is reported, and stays.
    @Test mutating func unreadable() {
        let actions = send(.unreadable(name: "k.record"))
        #expect(actions.count == 1)
        guard case .report(let report) = actions.first else { return #expect(Bool(false), "no report") }
        #expect(report.kind == .error && report.message?.contains("k.record") == true)
    }

    /// Goal: the server's token of the installation is asked for once, and kept.
    @Test mutating func installation() {
        #expect(send(.loggedIn(.ann)).contains(.askInstallation))
        #expect(send(.installationIssued(token: "t")) == [.writeInstallation(token: "t")])
        #expect(send(.installationIssued(token: "t")).isEmpty)
        #expect(!send(.loggedIn(.ann)).contains(.askInstallation))
    }
}
