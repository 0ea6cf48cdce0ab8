/// The app's memory of its purchases: what happened goes in, what is to be done comes out.
///
/// The journal does no input and no output, and knows no clock. Whoever owns it does the actions and reports what came
/// of them: a store, StoreKit, and the server (<doc:TheJournal>). The table of <doc:TheTable> has each phase of a
/// record and each event.
///
/// A record is removed in three cases: its transaction is safe to finish by the server's word and was finished; its
/// payment was never asked for; another record has its transaction. No error and no missing answer removes one.
public struct PurchaseJournal: Sendable, Hashable {
    /// What the app decides beforehand.
    public let policy: JournalPolicy
    /// All records, by key.
    public internal(set) var records: [RecordKey: PurchaseRecord] = [:]
    /// The token that the server issued for this installation.
    public internal(set) var installationToken: String?
    /// Who is logged in.
    public internal(set) var session: Session?
    /// The payments that StoreKit was asked for in this run of the app, and has not answered.
    public internal(set) var calls: Set<RecordKey> = []

    /// The payments that are asked for as soon as this revision of their record is stored.
    var asking: [RecordKey: UInt32] = [:]
    /// The records that the store does not have as they are.
    var unstored: Set<RecordKey> = []
    /// The records whose transaction another record has.
    var superfluous: [RecordKey] = []
    var round = Round()
    var nextSequence: UInt64 = 1
    var actions: [JournalAction] = []

    /// A user who is logged in.
    public struct Session: Sendable, Hashable {
        /// The user.
        public let user: UserID
        /// False after the server refused the user's credential (401), until the next login.
        public internal(set) var isUsable = true
    }

    /// A journal with the records of the store.
    ///
    /// - Parameters:
    ///   - records: all that could be read. Of two with one key the one with the higher revision counts.
    ///   - installationToken: the token that the store has, if any.
    public init(
        policy: JournalPolicy = JournalPolicy(), records: [PurchaseRecord] = [], installationToken: String? = nil
    ) {
        self.policy = policy
        self.installationToken = installationToken
        for record in records.sorted(by: { ($0.sequence, $0.revision) < ($1.sequence, $1.revision) }) {
            if let other = self.records[record.key], other.revision > record.revision { continue }
            self.records[record.key] = record
            nextSequence = max(nextSequence, record.sequence + 1)
        }
        for group in Dictionary(grouping: inOrder.filter { $0.transaction != nil }, by: \.transaction).values {
            // A kill between the two steps of taking a transaction over leaves both records.
            let kept = group.first { !$0.isAdopted && $0.user != nil } ?? group[0]
            for other in group where other.key != kept.key {
                self.records[other.key] = nil
                superfluous.append(other.key)
            }
        }
        superfluous.sort { $0.text < $1.text }
    }

    /// Takes one event in.
    ///
    /// - Returns: what is to be done, in this order.
    public mutating func handle(_ event: JournalEvent) -> [JournalAction] {
        switch event {
        case .launched: launched()
        case .foregrounded: useOccasion()
        case .shopOpened: useOccasion(asksOrders: true)
        case .loggedIn(let user): loggedIn(user)
        case .loggedOut:
            session = nil
            round.drop()
        case .installationIssued(let token):
            guard token != installationToken else { break }
            installationToken = token
            actions.append(.writeInstallation(token: token))
        case .begun(let key): begun(key)
        case .described(let key, let user, let details, let token): described(key, user, details, token)
        case .ordered(let key, let order): ordered(key, order)
        case .orderFailed(let key):
            if records[key]?.phase == .prepared { tell(.noOrder(key)) }
        case .orderGranted(let key, let transaction): orderGranted(key, transaction)
        case .payRequested(let key): payRequested(key)
        case .abandoned(let key):
            if let phase = records[key]?.phase, phase == .reserved || phase == .prepared { remove(key) }
        case .stored(let key, let revision): stored(key, revision)
        case .storeFailed(let key, let revision): storeFailed(key, revision)
        case .unreadable(let name):
            report(.error, nil, message: "The record \(name) cannot be read and was put aside.")
        case .returned(let key, let answer): returned(key, answer)
        case .seen(let transaction): seen(transaction)
        case .seenFailed(let transaction, let product): seenFailed(transaction, product)
        case .finished(let transaction): finished(transaction)
        case .finishFailed: break  // It is finished at the next occasion.
        case .posted(let number, let answer): posted(number, answer)
        case .polled(let key, let answer): polled(key, answer)
        case .woke(let number): woke(number)
        }
        defer { actions = [] }
        return actions
    }

    /// The user's records that the app should see settled before it sells to the user again. Advice: the server is
    /// right whatever the app does. A record that three rounds could not settle is not named any more, so it blocks no
    /// product.
    public func unsettled(of user: UserID) -> [RecordKey] {
        inOrder.filter {
            $0.user == user && ($0.phase.isOwed && $0.failures < Self.failuresMax || calls.contains($0.key))
        }.map(\.key)
    }

    static let failuresMax: UInt8 = 3
}

/// What the app decides beforehand.
public struct JournalPolicy: Sendable, Hashable {
    /// The product ids that this server sells; nil for all of the app's. A transaction of another product is neither
    /// recorded nor finished.
    public var products: Set<String>?
    /// The seconds between the tries of one round: five tries within a minute.
    public var gaps = [5, 10, 15, 25]
    /// The seconds before each question about a record that the server has stored.
    public var pollDelays = [0, 5, 15]
    /// How many records one post has at most. The server takes 200.
    public var batchRecords = 50
    /// How many bytes of proofs one post has at most, unless one proof alone is larger. The server takes 8 MiB.
    public var batchBytes = 4 << 20
    /// How many orders are asked about at one occasion.
    public var ordersAsked = 10

    /// The policy of the documentation.
    ///
    /// - Parameter products: see ``products``.
    public init(products: Set<String>? = nil) { self.products = products }
}

// MARK: - Occasions

extension PurchaseJournal {
    private mutating func launched() {
        superfluous.forEach { actions.append(.erase($0)) }
        superfluous = []
        for record in inOrder {
            switch record.phase {
            // StoreKit is asked only after `asked` is stored: no payment can follow from these.
            case .reserved, .prepared, .finished: remove(record.key)
            case .asked: change(record.key) { $0.phase = .unknown }
            case .pending, .unknown, .failed, .cancelled, .unclaimed, .paid, .accepted, .safe: break
            }
        }
        claimAll()
        useOccasion()
    }

    /// Tries again what is owed to the server and to StoreKit.
    mutating func useOccasion(asksOrders: Bool = false) {
        for record in inOrder where unstored.contains(record.key) { actions.append(.write(record)) }
        actions.append(.scan)
        for record in inOrder where record.phase == .safe { finish(record) }
        if asksOrders { askOrders() }
        startRound()
    }

    private mutating func loggedIn(_ user: UserID) {
        if session?.user != user { round.drop() }
        session = Session(user: user)
        if installationToken == nil { actions.append(.askInstallation) }
        askOrders()
        startRound()
    }

    /// Asks what became of the payments that brought no transaction, the newest first.
    private mutating func askOrders() {
        let waiting = inOrder.reversed().filter {
            $0.phase.waitsForTransaction && $0.transaction == nil && $0.order != nil && $0.user == session?.user
                && !isBusy($0.key)
        }
        for record in waiting.prefix(policy.ordersAsked) {
            if let order = record.order { actions.append(.askOrder(record.key, order: order)) }
        }
    }

    /// The record learns which transaction it waits for, and stays until that transaction is safe to finish.
    private mutating func orderGranted(_ key: RecordKey, _ transaction: String) {
        guard let record = records[key], record.phase.waitsForTransaction, record.transaction == nil, !isBusy(key)
        else { return }
        if let known = self.key(of: transaction) {
            if records[known]?.isAnybodys == true { takeOver(key, known) }
        } else {
            change(key) { $0.transaction = transaction }
        }
        tell(.settled(key))
    }
}

// MARK: - Records

extension PurchaseJournal {
    /// All records, the oldest first.
    var inOrder: [PurchaseRecord] { records.values.sorted { $0.sequence < $1.sequence } }

    func isOurs(_ product: String) -> Bool { policy.products?.contains(product) ?? true }

    func key(of transaction: String) -> RecordKey? { inOrder.first { $0.transaction == transaction }?.key }

    mutating func makeRecord(_ key: RecordKey) -> PurchaseRecord {
        defer { nextSequence += 1 }
        return PurchaseRecord(key: key, sequence: nextSequence)
    }

    /// Puts a new record in.
    mutating func insert(_ record: PurchaseRecord) {
        records[record.key] = record
        write(record)
    }

    /// Changes a record, and has it written if it is another one now.
    mutating func change(_ key: RecordKey, _ body: (inout PurchaseRecord) -> Void) {
        guard let before = records[key] else { return }
        var record = before
        body(&record)
        guard record != before else { return }
        record.revision += 1
        records[key] = record
        write(record)
    }

    /// Of two writes of one record with nothing between them the second is enough.
    private mutating func write(_ record: PurchaseRecord) {
        if case .write(let last)? = actions.last, last.key == record.key { actions.removeLast() }
        actions.append(.write(record))
    }

    mutating func remove(_ key: RecordKey) {
        records[key] = nil
        asking[key] = nil
        unstored.remove(key)
        round.turns[key] = nil
        actions.append(.erase(key))
    }

    mutating func finish(_ record: PurchaseRecord) {
        if let transaction = record.transaction { actions.append(.finish(transaction: transaction)) }
    }

    mutating func tell(_ notice: JournalNotice) { actions.append(.tell(notice)) }

    mutating func report(_ kind: ClientReport.Kind, _ record: PurchaseRecord?, message: String? = nil) {
        actions.append(
            .report(
                ClientReport(
                    kind: kind, user: record?.user, order: record?.order, transaction: record?.transaction,
                    message: message)))
    }
}
