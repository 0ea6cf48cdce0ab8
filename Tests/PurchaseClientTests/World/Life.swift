import TestRandom

@testable import PurchaseClient

/// One device with an app, two users, Apple and the server: the app does what the journal says, as well as its world
/// lets it. The store holds bytes.
struct Life {
    /// What is under way outside of the journal.
    enum Flight: Equatable {
        case stored(RecordKey, revision: UInt32, isStored: Bool)
        case pay(PurchaseRecord)
        case scan
        case finish(String)
        case finishFailed(String)
        case installation
        case order(PurchaseRecord, for: String?)
        case askOrder(RecordKey, String)
        case post(PurchasePost)
        case poll(RecordKey, String)
        case wake(Int)
        case refresh(RecordKey)
    }

    var random: SeededRandom
    var apple = AppleModel()
    var server = ServerModel()
    /// What the store holds.
    private(set) var disk: [RecordKey: [UInt8]] = [:]
    private(set) var diskToken: String?
    private(set) var watched = WatchedJournal()
    private(set) var queue: [JournalAction] = []
    private(set) var flights: [Flight] = []
    private(set) var time: Int64 = 1_000_000_000
    /// What broke a rule.
    private(set) var broken: [String] = []
    /// Which users have tapped which product.
    private(set) var taps: [String: Set<UserID>] = [:]
    /// How many actions were done.
    private(set) var actionsDone = 0
    let isStoreKit1: Bool
    /// Whether anything may fail.
    var isCalm = false
    private var lastKey = 0
    private var signatures = 1
    private var anothers = 3

    init(seed: UInt64, isStoreKit1: Bool = false) {
        random = SeededRandom(seed: seed)
        self.isStoreKit1 = isStoreKit1
        start()
    }

    var session: UserID? { watched.journal.session?.user }
    var isQuiet: Bool { queue.isEmpty && flights.isEmpty }

    /// Whether something happens that happens once in so many times.
    mutating func chance(_ times: Int) -> Bool { !isCalm && Int.random(in: 0..<times, using: &random) == 0 }

    mutating func send(_ event: JournalEvent) {
        queue += watched.handle(event)
        broken += watched.broken.filter { !broken.contains($0) }
        time += 1_000
    }

    // MARK: Life and death

    mutating func kill() {
        for case .pay(let record) in flights where chance(2) {
            apple.sell(record.details.product ?? "", record.accountToken, to: record.user!, at: time)
        }
        queue = []
        flights = []
        start()
    }

    private mutating func start() {
        var records: [PurchaseRecord] = []
        for (key, bytes) in disk {
            guard case .record(let record)? = try? StoredItem(decoding: bytes) else {
                broken.append("the store's \(key) cannot be read")
                continue
            }
            records.append(record)
        }
        watched = WatchedJournal(PurchaseJournal(records: records, installationToken: diskToken))
        send(.launched)
    }

    // MARK: What the user does

    mutating func tap(_ product: String) {
        guard let user = session else { return }
        lastKey += 1
        let key = RecordKey("tap \(lastKey)")!
        taps[product, default: []].insert(user)
        send(.begun(key))
        var details = PurchaseDetails.details(product)
        details.time = time
        send(.described(key, user: user, details))
        if watched.journal.records[key]?.phase == .prepared, !queue.contains(.placeOrder(key, transaction: nil)) {
            send(.payRequested(key))
        }
    }

    // MARK: What the app does

    /// Does the next action that the journal wants.
    mutating func act() {
        guard !queue.isEmpty else { return }
        actionsDone += 1
        switch queue.removeFirst() {
        case .write(let record):
            let isStored = !chance(30)
            if isStored { disk[record.key] = StoredItem.record(record).encoded }
            flights.append(.stored(record.key, revision: record.revision, isStored: isStored))
        case .erase(let key): if !chance(20) { disk[key] = nil }
        case .writeInstallation(let token): diskToken = token
        case .pay(let key):
            guard let bytes = disk[key], case .record(let record)? = try? StoredItem(decoding: bytes),
                record.phase == .asked
            else { return broken.append("\(key) is paid for, and the store does not know") }
            flights.append(.pay(record))
        case .scan: flights.append(.scan)
        case .finish(let id): flights.append(.finish(id))
        case .finishFailed(let id): flights.append(.finishFailed(id))
        case .refreshReceipt(let key): flights.append(.refresh(key))
        case .askInstallation: flights.append(.installation)
        case .placeOrder(let key, let sale):
            if let record = watched.journal.records[key] { flights.append(.order(record, for: sale)) }
        case .askOrder(let key, let order): flights.append(.askOrder(key, order))
        case .post(let post): flights.append(.post(post))
        case .poll(let key, let receipt, _): flights.append(.poll(key, receipt))
        case .wake(let number, _): flights.append(.wake(number))
        case .report: break
        case .tell(.noOrder(let key)):
            if chance(2) { send(.abandoned(key)) } else { send(.payRequested(key)) }
        case .tell: break
        }
    }

    /// Ends one of the things that are under way; the store's answers come first and in their order.
    mutating func land(_ index: Int) {
        let first = flights.firstIndex { if case .stored = $0 { true } else { false } }
        switch flights.remove(at: first ?? index) {
        case .stored(let key, let revision, let isStored):
            send(isStored ? .stored(key, revision: revision) : .storeFailed(key, revision: revision))
        case .pay(let record): pay(record)
        case .scan: showAll()
        case .finish(let id): finish(id)
        case .finishFailed(let id):
            let isFailed = apple.failed.keys.contains(id) && !chance(3)
            if isFailed { apple.finishFailed(id) }
            send(isFailed ? .finished(transaction: id) : .finishFailed(transaction: id))
        case .installation: if !chance(3) { send(.installationIssued(token: "installation")) }
        case .order(let record, let sale): placeOrder(record, for: sale)
        case .askOrder(let key, let order):
            if let sale = server.orders[order]?.boundBy, !chance(4) { send(.orderGranted(key, transaction: sale)) }
        case .post(let post): answer(post)
        case .poll(let key, let receipt):
            if chance(4) { return send(.polled(key, nil)) }
            if !chance(3) { server.judge(receipt) }
            let sale = watched.journal.records[key]?.transaction ?? ""
            send(.polled(key, RecordAnswer(status: 200, isSafeToFinish: server.say(sale), receipt: receipt)))
        case .wake(let number): send(.woke(number: number))
        case .refresh(let key):
            if let id = watched.journal.records[key]?.transaction { show(id) }
        }
    }

    /// StoreKit shows everything that is not finished.
    mutating func showAll() {
        for sale in apple.unfinished { show(sale.id) }
        for (id, product) in apple.failed.sorted(by: { $0.key < $1.key }) {
            send(.seenFailed(transaction: id, product: product))
        }
    }

    /// StoreKit shows one transaction.
    mutating func show(_ id: String) {
        guard let sale = apple.sales[id], sale.isVisible, !sale.isFinished else { return }
        if chance(3) { signatures += 1 }
        send(.seen(sale.shown(byStoreKit1: isStoreKit1, signed: signatures)))
    }

    private mutating func pay(_ record: PurchaseRecord) {
        let key = record.key
        let user = record.user!
        let product = record.details.product!
        if isCalm || !chance(2) {
            let sale = apple.sell(product, record.accountToken, to: user, at: time)
            // `updates` may be faster than the payment's answer, or the answer may never come.
            if chance(4) { show(sale.id) }
            guard !chance(8) else { return }
            var shown = sale.shown(byStoreKit1: false, signed: 1)
            if isStoreKit1, shown.token == .none { shown.token = .unknown }
            return send(.returned(key, .purchased(shown)))
        }
        let isPaid = chance(2)
        switch Int.random(in: 0..<4, using: &random) {
        case 0:
            if isPaid { apple.sell(product, record.accountToken, to: user, at: time, isDenied: true, isVisible: false) }
            send(.returned(key, .cancelled))
        case 1:
            let id = isStoreKit1 ? apple.newID() : nil
            if isPaid {
                apple.sell(product, record.accountToken, to: user, at: time, id: id, isDenied: true, isVisible: false)
            }
            if let id { apple.fail(id, product) }
            send(.returned(key, .failed(transaction: id)))
        case 2:
            if isPaid { apple.sell(product, record.accountToken, to: user, at: time, isVisible: false) }
            send(.returned(key, .unknown))
        default:
            apple.askParent(.init(product: product, token: record.accountToken, user: user))
            send(.returned(key, .pending))
        }
    }

    private mutating func finish(_ id: String) {
        if chance(3) { return chance(2) ? send(.finishFailed(transaction: id)) : () }
        if let sale = apple.sales[id], sale.isVisible, !server.saidSafe.contains(id) {
            broken.append("\(id) was finished before it was safe")
        }
        apple.finish(id)
        if !chance(6) { send(.finished(transaction: id)) }
    }

    private mutating func placeOrder(_ record: PurchaseRecord, for sale: String?) {
        guard !chance(4), let user = record.user else {
            return chance(5) ? () : send(.orderFailed(record.key))
        }
        let order = server.place(
            record.key, user, record.details.product!, at: time, installation: diskToken, for: sale)
        guard !chance(10) else { return send(.orderFailed(record.key)) }
        send(.ordered(record.key, order: order))
        if sale == nil { send(.payRequested(record.key)) }
    }

    private mutating func answer(_ post: PurchasePost) {
        if chance(6) { return send(.posted(number: post.number, .none)) }
        if chance(12) { return send(.posted(number: post.number, .refused(status: 401))) }
        if chance(12) { return send(.posted(number: post.number, .refused(status: 503, retryAfter: 30))) }
        if chance(20) {
            return send(.posted(number: post.number, .refused(status: [400, 413, 500].randomElement(using: &random)!)))
        }
        var answers: [RecordKey: RecordAnswer] = [:]
        for record in post.records {
            guard let sale = record.transaction.flatMap({ apple.sales[$0] }),
                case .signedTransaction(let proof) = record.proof, proof.hasPrefix("jws \(sale.id) ")
            else {
                broken.append("\(record.key) was posted without its proof")
                continue
            }
            if anothers > 0, record.isAdopted, chance(10) {
                anothers -= 1
                answers[record.key] = .anothers
                continue
            }
            let receipt = server.store(
                .init(user: post.user, sale: sale, order: record.order, installation: post.installationToken))
            if !chance(3) { server.judge(receipt) }
            if chance(12) { continue }
            answers[record.key] = RecordAnswer(
                status: 200, isSafeToFinish: server.say(sale.id), receipt: receipt, needsFreshReceipt: chance(20))
        }
        // The answer may be lost after the server has granted.
        send(.posted(number: post.number, chance(6) ? .none : .answered(answers)))
    }

    // MARK: What happens

    /// One of all the things that may happen.
    mutating func happen() {
        if !isQuiet, Int.random(in: 0..<8, using: &random) > 0 {
            if !queue.isEmpty, flights.isEmpty || Bool.random(using: &random) { return act() }
            return land(Int.random(in: flights.indices, using: &random))
        }
        switch Int.random(in: 0..<18, using: &random) {
        case 16: if chance(2) { apple.sell("coins", nil, to: nil, at: time) }
        case 17:
            // A renewal carries the token of the first purchase.
            let signed = apple.sales.values.filter { $0.token != nil }.sorted { $0.id < $1.id }
            if let sale = signed.randomElement(using: &random), chance(2) {
                apple.renew(sale, at: time)
            }
        case 0, 1: send(.loggedIn([.ann, .bob].randomElement(using: &random)!))
        case 2: if chance(3) { send(.loggedOut) }
        case 3: send(.foregrounded)
        case 4: send(.shopOpened)
        case 5, 6, 7, 8: tap(["coins", "gems"].randomElement(using: &random)!)
        case 9, 10: if let sale = apple.unfinished.randomElement(using: &random) { show(sale.id) }
        case 11, 12:
            if let index = apple.approvals.indices.randomElement(using: &random) {
                apple.decide(index, isApproved: !chance(4), at: time)
            }
        case 13: if chance(2) { apple.reveal() }
        case 14: if chance(2) { kill() }
        default:
            let sales = apple.sales.values.sorted { $0.id < $1.id }
            if let sale = sales.randomElement(using: &random), chance(3) { server.hear(sale) }
        }
    }

    /// Everything works, and each user comes back: whatever is owed is brought to its end.
    mutating func comeToRest() {
        isCalm = true
        while !apple.approvals.isEmpty { apple.decide(0, isApproved: true, at: time) }
        apple.reveal()
        for user in [UserID.ann, .bob, .ann, .bob] {
            kill()
            send(.loggedIn(user))
            settle()
        }
    }

    /// Does everything that is wanted, in its order.
    mutating func settle() {
        var steps = 0
        while !isQuiet {
            if queue.isEmpty { land(0) } else { act() }
            steps += 1
            if steps > 20_000 { return broken.append("it never ends") }
        }
    }

    /// What Apple sold and what was granted are the same, to the right account, and finished.
    func faults() -> [String] {
        var faults = broken + server.doubled.map { "\($0) was granted twice" }
        for sale in apple.sales.values {
            guard let owner = server.grants[sale.id] else {
                faults.append("\(sale.id) was never granted")
                continue
            }
            if !sale.isFinished { faults.append("\(sale.id) was never finished") }
            if let user = sale.user, owner != user, isCertain(sale) {
                faults.append("\(sale.id) is \(user)'s, and went to \(owner)")
            }
        }
        for sale in server.grants.keys where apple.sales[sale] == nil { faults.append("\(sale) was never sold") }
        for (key, bytes) in disk {
            if case .record(let record)? = try? StoredItem(decoding: bytes), record.proof != nil {
                faults.append("\(key) is left, in phase \(record.phase)")
            }
        }
        return faults
    }

    /// Whether anything says whose the sale is: its token, or that nobody else wanted the product, in the app or in the
    /// App Store, and StoreKit denied no payment for it. Without a token, and with any of these, nobody can know.
    /// StoreKit 1 does not show tokens, so there renewals mislead as well.
    private func isCertain(_ sale: AppleModel.Sale) -> Bool {
        let isUnclear = apple.sales.values.contains { other in
            let misleads = (other.isDenied || other.isRenewal) && (other.token == nil || isStoreKit1)
            return other.product == sale.product && (misleads || other.user != sale.user)
        }
        return sale.token != nil || (taps[sale.product]?.count == 1 && !isUnclear)
    }
}
