import AppStoreSimulator
import Foundation

/// The customers of a year and their devices: carries out the actions of the plan in the App Store, and holds the posts
/// that are still to come.
struct YearMarket {
    /// A post that the app makes from this minute on, until the server accepts it.
    struct Waiting: Sendable {
        let minute: Int
        let transactionID: String
        let userID: String
        let signedTransaction: String
        let isTwice: Bool
    }

    private struct Device {
        let customer: YearPlan.Customer
        /// How often another user has logged in.
        var logins = 0
        var hasApp = true
        /// One-time purchases, in their order.
        var purchases: [String] = []
        /// The chain of the present subscription.
        var chain: String?

        var account: String { "c\(customer.number)" }
        var user: String { logins == 0 ? "u\(customer.number)" : "u\(customer.number)-\(logins)" }
        var members: [String] { (0..<customer.members).map { "c\(customer.number)m\($0)" } }
    }

    private let store: AppStoreSimulator
    private var devices: [Device]
    private let seed: UInt64
    private let posts: Bool
    private(set) var books = YearBooks()
    private(set) var waiting: [Waiting] = []
    /// Tokens that are not registered yet, with their users.
    private(set) var unregistered: [(token: UUID, user: String)] = []
    /// Actions that the store refused: the state of the subscription did not allow them.
    private(set) var refusals = 0
    private(set) var done = 0

    /// - Parameter posts: false: no app ever posts.
    init(_ plan: YearPlan, store: AppStoreSimulator, posts: Bool) {
        self.store = store
        self.posts = posts
        seed = plan.terms.seed
        devices = plan.customers.map { Device(customer: $0) }
        for index in devices.indices {
            logIn(index)
            for (place, member) in devices[index].members.enumerated() {
                books.note(
                    user: "u\(devices[index].customer.number)m\(place)", of: member,
                    number: devices[index].customer.number)
            }
        }
    }

    /// The users of all customers and members.
    var users: [String] { books.users.values.flatMap { $0 }.sorted() }

    mutating func registered() { unregistered = [] }
    mutating func note(_ post: YearBooks.Posted) { books.note(post) }
    mutating func note(erased number: Int) { books.note(erased: number) }

    /// The posts that are due; they no longer wait.
    mutating func takeWaiting(until minute: Int) -> [Waiting] {
        let due = waiting.filter { $0.minute <= minute }
        waiting.removeAll { $0.minute <= minute }
        return due
    }

    /// Posts that the server did not accept wait again.
    mutating func putBack(_ posts: [Waiting]) { waiting += posts }

    private mutating func logIn(_ index: Int) {
        let device = devices[index]
        books.note(user: device.user, of: device.account, number: device.customer.number)
        if let token = token(of: device) {
            books.note(token: token, of: device.user)
            unregistered.append((token, device.user))
        }
    }

    /// The token by which the app names its user; it follows from the seed.
    private func token(of device: Device) -> UUID? {
        guard device.customer.hasToken else { return nil }
        var random = SplitMix64(
            seed: seed ^ 0x746F_6B65_6E ^ (UInt64(device.customer.number) << 8 + UInt64(device.logins)))
        return withUnsafeBytes(of: (random.next(), random.next())) { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
    }

    // MARK: Actions

    /// Carries out one action. An action that the store refuses is counted and left out.
    mutating func perform(_ action: YearPlan.Action, of number: Int) async {
        do throws(ControlError) {
            try await carryOut(action, number)
            done += 1
        } catch {
            refusals += 1
        }
    }

    private mutating func carryOut(_ action: YearPlan.Action, _ number: Int) async throws(ControlError) {
        let device = devices[number]
        switch action.kind {
        case .buy(let product, let units):
            var sale = request(product, device)
            sale.quantity = units
            sale.notify = true
            if product.type == .nonConsumable, !device.members.isEmpty { sale.family = device.members }
            devices[number].purchases.append(try await sell(sale, action, device))
        case .subscribe(let product, let period):
            var sale = request(product, device)
            sale.period = period
            if !device.members.isEmpty { sale.family = device.members }
            devices[number].chain = try await sell(sale, action, device)
        case .open: try post(newestPeriod(device), action, device)
        case .refund(let place, let percent): try refund(place, percent, device)
        case .reverseRefund(let place):
            if let id = purchase(place, device) { _ = try store.reverseRefund(id) }
        case .refundPeriod:
            if let id = newestPeriod(device) { _ = try store.refund(id) }
        case .askConsumption(let place):
            if let id = purchase(place, device) { _ = try store.requestConsumption(of: id) }
        case .withdrawMember: try withdrawMember(device)
        case .switchUser:
            devices[number].logins += 1
            logIn(number)
        case .deleteApp: devices[number].hasApp = false
        default: try changeSubscription(action, number)
        }
    }

    private func request(_ product: YearPlan.Product, _ device: Device) -> SaleRequest {
        var sale = SaleRequest(
            app: PurchaseGenerator.bundle, productId: product.rawValue, appAccountToken: token(of: device)?.uuidString,
            type: product.type)
        sale.customer = device.account
        sale.receipts = false
        return sale
    }

    /// Sells, and lets the app post; returns the transaction id. A member's app posts the member's share alike.
    private mutating func sell(
        _ request: SaleRequest, _ action: YearPlan.Action, _ device: Device
    ) async throws(ControlError) -> String {
        let sales = try await store.sell(request)
        guard let sale = sales.first else { throw ControlError(status: 503, "nothing was sold") }
        let id = sale.purchase.transactionId
        enqueue(id, sale.signedTransaction, action, device, user: device.user)
        for (place, share) in sale.family.enumerated() where place % 2 == 0 {
            enqueue(
                share.purchase.transactionId, share.signedTransaction, action, device,
                user: "u\(device.customer.number)m\(place)")
        }
        return id
    }

    private mutating func post(
        _ transactionID: String?, _ action: YearPlan.Action, _ device: Device
    ) throws(ControlError) {
        guard let transactionID else { return }
        enqueue(transactionID, try store.sign(transactionID), action, device, user: device.user)
    }

    private mutating func enqueue(
        _ id: String, _ signed: String, _ action: YearPlan.Action, _ device: Device, user: String
    ) {
        guard posts, device.hasApp else { return }
        let minute: Int
        switch action.post {
        case .lost: return
        case .once, .twice: minute = action.minute
        case .late(let minutes): minute = action.minute + minutes
        }
        waiting.append(
            Waiting(
                minute: minute, transactionID: id, userID: user, signedTransaction: signed,
                isTwice: action.post == .twice))
    }

    private func purchase(_ place: Int, _ device: Device) -> String? {
        place < device.purchases.count ? device.purchases[place] : nil
    }

    private func refund(_ place: Int, _ percent: Int?, _ device: Device) throws(ControlError) {
        guard let id = purchase(place, device) else { return }
        var request = RefundRequest(revocationReason: place % 2)
        request.revocationType = percent == nil ? "REFUND_FULL" : "REFUND_PRORATED"
        request.revocationPercentage = percent.map { $0 * 1000 }
        _ = try store.refund(id, request)
    }

    private func withdrawMember(_ device: Device) throws(ControlError) {
        guard let period = newestPeriod(device),
            let share = store.ledger.last(where: { $0.familyOf == period && !$0.revoked })
        else { return }
        var request = RefundRequest()
        request.revocationType = "FAMILY_REVOKE"
        _ = try store.refund(share.transactionId, request)
    }

    // MARK: Subscriptions

    /// The transaction of the newest period of the device's subscription.
    private func newestPeriod(_ device: Device) -> String? {
        device.chain.flatMap { store.newestPeriod(of: $0)?.transactionId }
    }

    private mutating func changeSubscription(_ action: YearPlan.Action, _ number: Int) throws(ControlError) {
        let device = devices[number]
        guard let chain = device.chain else { return }
        var request = SubscriptionRequest()
        switch action.kind {
        case .billingFails: request.billing = .fails
        case .billingRecovers: request.billing = .recovers
        case .cancel: request.autoRenew = false
        case .resubscribe: request.resubscribe = true
        case .raisePrice: request.priceIncrease = .pending
        case .acceptPrice: request.priceIncrease = .accepted
        case .change(let change, let product):
            request.change = change
            request.nextProductId = product.rawValue
        case .joinBundle, .leaveBundle:
            request.bundle = action.kind == .joinBundle ? .join : .leave
            request.nextProductId =
                (action.kind == .joinBundle ? YearPlan.Product.bundle : YearPlan.Product.vip).rawValue
        default: return
        }
        _ = try store.change(request, of: chain)
        if request.bundle != nil, let next = store.successor(of: chain) { devices[number].chain = next }
        try post(newestPeriod(devices[number]), action, device)
    }
}
