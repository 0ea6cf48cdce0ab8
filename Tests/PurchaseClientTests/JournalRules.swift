import Testing

@testable import PurchaseClient

/// A journal whose every step is held against the rules that no event may break.
struct WatchedJournal: Hashable {
    private(set) var journal: PurchaseJournal
    /// The records as the store has them.
    private(set) var written: [RecordKey: PurchaseRecord] = [:]
    /// The installation's token as the store has it.
    private(set) var installationToken: String?
    /// What broke a rule.
    private(set) var broken: [String] = []

    init(_ journal: PurchaseJournal = PurchaseJournal()) {
        self.journal = journal
        for record in journal.records.values { written[record.key] = record }
        installationToken = journal.installationToken
    }

    /// The journal after a kill: with what the store has.
    var restarted: WatchedJournal {
        WatchedJournal(
            PurchaseJournal(
                policy: journal.policy, records: Array(written.values), installationToken: installationToken))
    }

    mutating func handle(_ event: JournalEvent) -> [JournalAction] {
        let before = journal
        let actions = journal.handle(event)
        for action in actions { hold(action, of: event, before: before) }
        for record in journal.records.values where written[record.key] != record {
            broken.append("\(event): \(record.key) is another one than was written")
        }
        for (key, old) in before.records {
            guard let new = journal.records[key] else {
                if !mayGo(old, event) { broken.append("\(event): \(key) is gone, in phase \(old.phase)") }
                continue
            }
            if old.user != nil, !old.isAdopted, new.user != old.user {
                broken.append("\(event): \(key) changed its user")
            }
            if new.phase == .safe, old.phase != .safe, !event.saysSafe(key) {
                broken.append("\(event): \(key) is safe by nobody's word")
            }
            if new.phase.isOwed, new.user == nil { broken.append("\(event): \(key) is owed by nobody") }
            if old.proof != nil, new.proof == nil { broken.append("\(event): \(key) lost its proof") }
        }
        let transactions = journal.records.values.compactMap(\.transaction)
        if Set(transactions).count != transactions.count { broken.append("\(event): two records of one transaction") }
        return actions
    }

    private mutating func hold(_ action: JournalAction, of event: JournalEvent, before: PurchaseJournal) {
        switch action {
        case .write(let record): written[record.key] = record
        case .erase(let key): written[key] = nil
        case .writeInstallation(let token): installationToken = token
        case .pay(let key):
            guard case .stored(key, let revision) = event, let record = written[key], record.phase == .asked,
                record.revision == revision, record.user == journal.session?.user
            else { return broken.append("\(event): \(key) is paid for before its record is stored") }
        case .finish(let transaction):
            if journal.records.values.first(where: { $0.transaction == transaction })?.phase != .safe {
                broken.append("\(event): \(transaction) is finished too early")
            }
        case .finishFailed(let transaction):
            let record = journal.records.values.first { $0.transaction == transaction }
            if record?.phase != .failed || record?.failures != 3 || record?.proof != nil {
                broken.append("\(event): \(transaction) is finished as failed too early")
            }
        case .post(let post):
            if post.user != journal.session?.user { broken.append("\(event): posted for \(post.user)") }
            for record in post.records
            where record.user != post.user || !record.phase.isOwed || written[record.key] != record {
                broken.append("\(event): \(record.key) is posted as \(post.user)'s")
            }
        default: break
        }
    }

    /// The three cases in which a record is removed.
    private func mayGo(_ record: PurchaseRecord, _ event: JournalEvent) -> Bool {
        switch (record.phase, event) {
        case (.reserved, .abandoned), (.prepared, .abandoned), (.reserved, .launched), (.prepared, .launched),
            (.finished, .launched):
            true
        case (.safe, .finished(record.transaction)): true
        case (.failed, .finished(record.transaction)): record.user == nil
        default:
            record.user == nil || record.isAdopted
                ? journal.records.values.contains { $0.transaction == record.transaction } : false
        }
    }
}

extension JournalEvent {
    fileprivate func saysSafe(_ key: RecordKey) -> Bool {
        switch self {
        case .posted(_, .answered(let answers)): answers[key].map { $0.isSafeToFinish && $0.status < 300 } ?? false
        case .polled(key, let answer?): answer.isSafeToFinish && answer.status < 300
        // They may take over a record that was safe.
        case .orderGranted(key, _): true
        case .returned(key, .purchased): true
        default: false
        }
    }
}

// MARK: - Names that tests share

extension UserID {
    static let ann = UserID("ann")!
    static let bob = UserID("bob")!
}

extension RecordKey {
    static let a = RecordKey("a")!
    static let b = RecordKey("b")!
}

let coins = "coins6"
let orderA = "00000000-0000-4000-8000-00000000000a"
let orderB = "00000000-0000-4000-8000-00000000000b"

extension StoreTransaction {
    static func of(
        _ id: String, _ token: Token = .none, product: String = coins, at time: Int64? = nil, signed: Int = 1
    ) -> Self {
        Self(
            id: id, product: product, token: token, purchasedAt: time, proof: .signedTransaction("jws \(id) \(signed)"))
    }
}

extension StoreTransaction.Token {
    static let a = Self.some(AccountToken(orderA)!)
    static let b = Self.some(AccountToken(orderB)!)
}

extension RecordAnswer {
    static let safe = Self(status: 200, isSafeToFinish: true, receipt: "r")
    static let stored = Self(status: 202, isSafeToFinish: false, receipt: "r")
    static let anothers = Self(status: 202, isSafeToFinish: false, receipt: "r", isPerhapsAnothers: true)
    static let refused = Self(status: 422, isSafeToFinish: true)
}

extension PurchaseDetails {
    static let coins = details(PurchaseClientTests.coins)

    static func details(_ product: String, country: String? = nil) -> Self {
        var details = PurchaseDetails()
        details.session = "digest"
        details.product = product
        details.quantity = 1
        details.server = "s1"
        details.role = "r1"
        details.time = 1_000_000
        details.country = country
        return details
    }
}
