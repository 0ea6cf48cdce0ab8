// Rounds of posts: five tries within a minute, then at the next occasion.
extension PurchaseJournal {
    struct Round: Sendable, Hashable {
        /// The records of the round.
        var turns: [RecordKey: Turn] = [:]
        /// The post that is under way.
        var batch: Batch?
        /// Why nothing is posted for a while.
        var rest: Rest?
        /// Whether an occasion came while the server wanted no posts.
        var isWanted = false
        /// Whether each record is posted alone, because the server refused a request of several.
        var postsSingly = false
        /// Whether records are still being added: nothing is posted before all of them are there.
        var isGathering = false
        /// Numbers posts and rests.
        var number = 0

        struct Turn: Sendable, Hashable {
            var tries = 0
            var polls = 0
            /// Whether the server has stored the proof: nothing more is posted in this round.
            var isStored = false
            var hasAskedOrder = false
        }

        struct Batch: Sendable, Hashable {
            let number: Int
            let keys: [RecordKey]
        }

        struct Rest: Sendable, Hashable {
            let number: Int
            /// Whether the server asked for it (`Retry-After`): an occasion does not end it.
            let isServers: Bool
        }

        /// Forgets what was under way; late answers are known by their numbers.
        mutating func drop() { self = Round(number: number) }

        init(number: Int = 0) { self.number = number }
    }

    /// Begins a round with all that the user's records owe to the server.
    mutating func startRound() {
        guard let session, session.isUsable else { return }
        guard round.rest?.isServers != true else {
            round.isWanted = true
            return
        }
        round.rest = nil
        round.isWanted = false
        round.postsSingly = false
        round.turns = [:]
        round.isGathering = true
        for record in inOrder where record.phase.isOwed && record.user == session.user {
            round.turns[record.key] = Round.Turn()
        }
        for record in inOrder where record.phase == .unclaimed { claim(record, isStored: true) }
        round.isGathering = false
        postNext()
    }

    /// Has a record posted that the round does not have yet, or that has changed.
    mutating func enqueue(_ key: RecordKey) {
        guard let record = records[key], record.phase.isOwed, let user = record.user else { return }
        guard let session, session.user == user else { return tell(.waitsForLogin(user)) }
        guard session.isUsable else { return }
        round.turns[key] = Round.Turn(hasAskedOrder: round.turns[key]?.hasAskedOrder ?? false)
        postNext()
    }

    /// Posts the records with the fewest tries, the oldest first, unless a post is under way.
    private mutating func postNext() {
        guard let session, session.isUsable, !round.isGathering, round.batch == nil, round.rest == nil
        else { return }
        let due = inOrder.filter { isDue($0.key) }.sorted {
            (round.turns[$0.key]?.tries ?? 0, $0.sequence) < (round.turns[$1.key]?.tries ?? 0, $1.sequence)
        }
        var batch: [PurchaseRecord] = []
        var bytes = 0
        for record in due.prefix(round.postsSingly ? 1 : policy.batchRecords) {
            bytes += record.proof?.byteCount ?? 0
            guard batch.isEmpty || bytes <= policy.batchBytes else { break }
            batch.append(record)
        }
        guard !batch.isEmpty else { return }
        round.number += 1
        round.batch = Round.Batch(number: round.number, keys: batch.map(\.key))
        actions.append(
            .post(
                PurchasePost(
                    number: round.number, user: session.user, records: batch, installationToken: installationToken)))
    }

    private func isDue(_ key: RecordKey) -> Bool {
        guard let turn = round.turns[key], let record = records[key], record.phase.isOwed else { return false }
        return !turn.isStored && turn.tries <= policy.gaps.count && record.user == session?.user
    }

    mutating func posted(_ number: Int, _ answer: PostAnswer) {
        guard let batch = round.batch, batch.number == number else { return postedLate(answer) }
        round.batch = nil
        switch answer {
        case .none: retry(batch.keys)
        case .refused(let status, _) where status == 401: refuseCredential()
        case .refused(let status, _)
        where (400..<500).contains(status) && ![408, 429].contains(status)
            && batch.keys.count > 1:
            // One record's fault is not the others'.
            round.postsSingly = true
            postNext()
        case .refused(_, let retryAfter): retry(batch.keys, retryAfter: retryAfter)
        case .answered(let answers):
            let failed = batch.keys.filter { answers[$0]?.isStored != true }
            for key in batch.keys where answers[key]?.isStored == true { answers[key].map { take($0, key) } }
            retry(failed)
        }
    }

    /// An answer that came after the user changed. That a transaction is safe to finish stays true.
    private mutating func postedLate(_ answer: PostAnswer) {
        guard case .answered(let answers) = answer else { return }
        for record in inOrder where record.phase == .unclaimed || record.phase.isOwed {
            if answers[record.key]?.isSafe == true { becomeSafe(record.key) }
        }
    }

    private mutating func refuseCredential() {
        guard let user = session?.user else { return }
        session?.isUsable = false
        round.drop()
        tell(.waitsForLogin(user))
    }

    /// Counts a try of each record, and waits for the next one.
    private mutating func retry(_ keys: [RecordKey], retryAfter: Int? = nil) {
        var most = 0
        for key in keys where isDue(key) {
            let tries = (round.turns[key]?.tries ?? 0) + 1
            round.turns[key]?.tries = tries
            most = max(most, tries)
            guard tries > policy.gaps.count else { continue }
            countFailure(key)
            tell(.kept(key))
        }
        let isServers = (retryAfter ?? 0) > 0
        guard most > 0, isServers || records.keys.contains(where: isDue) else { return postNext() }
        round.number += 1
        round.rest = Round.Rest(number: round.number, isServers: isServers)
        let seconds = isServers ? retryAfter : policy.gaps[min(most, policy.gaps.count) - 1]
        actions.append(.wake(number: round.number, afterSeconds: seconds ?? 0))
    }

    mutating func woke(_ number: Int) {
        guard round.rest?.number == number else { return }
        round.rest = nil
        if round.isWanted { startRound() } else { postNext() }
    }

    // MARK: What the server says about one record

    /// Takes an answer of success.
    private mutating func take(_ answer: RecordAnswer, _ key: RecordKey) {
        guard let record = records[key], record.phase.isOwed else { return }
        if answer.isSafe { return becomeSafe(key) }
        round.turns[key]?.isStored = true
        if answer.isPerhapsAnothers, record.isAdopted { return letGo(key) }
        change(key) {
            $0.phase = .accepted
            $0.receipt = answer.receipt ?? $0.receipt
        }
        if answer.needsFreshReceipt { actions.append(.refreshReceipt(key)) }
        if record.order == nil, round.turns[key]?.hasAskedOrder == false {
            round.turns[key]?.hasAskedOrder = true
            actions.append(.placeOrder(key, transaction: record.transaction))
        }
        poll(key)
    }

    mutating func polled(_ key: RecordKey, _ answer: RecordAnswer?) {
        guard let record = records[key], record.phase == .accepted else { return }
        if let answer, answer.isSafe { return becomeSafe(key) }
        guard canUse(record.user) else { return }
        if answer?.status == 401 { return refuseCredential() }
        if let answer, answer.isStored, answer.isPerhapsAnothers, record.isAdopted { return letGo(key) }
        poll(key)
    }

    /// Asks again for a limited time; then the record waits for the next occasion, which posts it again.
    private mutating func poll(_ key: RecordKey) {
        guard let turn = round.turns[key] else { return }
        guard let receipt = records[key]?.receipt, turn.polls < policy.pollDelays.count else {
            countFailure(key)
            return tell(.kept(key))
        }
        round.turns[key]?.polls += 1
        actions.append(.poll(key, receipt: receipt, afterSeconds: policy.pollDelays[turn.polls]))
    }

    /// The user who was logged in is perhaps not the transaction's user: at the next occasion whoever is logged in
    /// posts it.
    private mutating func letGo(_ key: RecordKey) {
        change(key) {
            $0.user = nil
            $0.phase = .unclaimed
            $0.receipt = nil
            $0.failures = min($0.failures + 1, Self.failuresMax)
        }
        tell(.kept(key))
    }

    private mutating func becomeSafe(_ key: RecordKey) {
        change(key) { $0.phase = .safe }
        round.turns[key] = nil
        if let record = records[key] { finish(record) }
        tell(.settled(key))
    }
}
