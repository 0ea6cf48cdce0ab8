import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import Metrics
import Postgres
import Purchases
package import Service
package import Settings

/// `POST /v1/orders`, `GET /v1/orders/{id}` and `GET /v1/orders`: what a user is about to buy, and the order's state.
package struct OrderRoutes: Sendable {
    package static let searchLimitDefault = 50
    package static let searchLimitMax = 200
    /// After this time the oldest of too many orders may no longer count for the day; ingest does not tell the exact
    /// time.
    private static let retryAfterSeconds = 3600

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let catalogues: CatalogueRefresher
    private let users: UserRegister
    private let longPoll: LongPoll
    private let bodies: BodyReader
    private let lists: ListReader
    private let placed = Counter(label: "makegood_orders_placed_total")
    private let repeated = Counter(label: "makegood_orders_repeated_total")

    package init(
        ledger: Ledger, configuration: ConfigurationHolder, catalogues: CatalogueRefresher,
        authenticator: Authenticator, longPoll: LongPoll,
        bodies: BodyReader, lists: ListReader
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.catalogues = catalogues
        self.authenticator = authenticator
        users = UserRegister(ledger: ledger)
        self.longPoll = longPoll
        self.bodies = bodies
        self.lists = lists
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/orders",
            [
                .post: Endpoint { try await post($0, $1) },
                .get: Endpoint("appId", "userId", "productId", "state", "after", "limit") { try await search($0, $1) },
            ])
        router.serve("/v1/orders/:id", [.get: Endpoint("wait") { try await get($0, $1) }])
    }

    /// Answers 201 for a new order, and 200 for an existing one: the same tap, key or reservation again.
    private func post(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let configuration = configuration.current
        var placement = try await bodies.withBody(of: request, context, from: caller) { body in
            try OrderRequest(
                body: body, caller: caller, apps: configuration.appIDs, placeholders: configuration.placeholders)
        }
        guard let app = configuration.apps[placement.appID] else { throw Problem.appNotAllowed }
        let keys = configuration.userKeys
        let catalogue = try await catalogues.catalogue(of: app)
        let now = Date()
        let order = try placement.order(id: OrderID.make(at: now), app: app, catalogue: catalogue, keys: keys, now: now)
        try await checkLimits(order, catalogue)
        if let keys { try await users.enter(placement.userID, key: order.userID, app: order.appID, keys) }
        guard let (view, isNew) = try await ledger.place(order) else {
            throw Problem.tooManyOrders(retryAfterSeconds: Self.retryAfterSeconds)
        }
        // The purchase that a guest names may have an order of the account that the guest became part of.
        guard try await caller.mayRead(appID: view.appID, userID: view.userID, keys, ledger) else {
            throw Problem.conflict(.orderOfAccount, "another account of this user has the order of this purchase")
        }
        // If the request names a purchase that has an order, that order is the answer, whatever it was placed for.
        let isOfPurchase = order.reservedFor.map { [view.transactionID, view.reservedFor].contains($0) } ?? false
        if placement.idempotencyKey != nil, view.debounceKey != order.debounceKey, !isOfPurchase {
            throw Problem.conflict(.idempotencyKey, "was sent with another order", field: "idempotencyKey")
        }
        (isNew ? placed : repeated).increment()
        // The order is placed: a failed question about another order refuses nothing.
        let open = isNew && order.reservedFor == nil ? try? await ledger.run(Statements.openOrder, order).first : nil
        return Response(
            json: try await shown([view], to: caller, of: placement.appID)[0].json(
                isRepeated: !isNew, priceDiffers: placement.priceDiffers(from: view.price), openOrder: open,
                ignored: placement.ignored),
            status: isNew ? .created : .ok)
    }

    /// - Throws: 409 where the user has bought the most that one user may buy, and this is no existing order.
    private func checkLimits(_ order: NewOrder, _ catalogue: Catalogue) async throws {
        guard let offer = order.offer, let product = catalogue.products[offer.productID],
            let limits = product.items[offer.item]?.limits, !limits.areNone
        else { return }
        let question = Statements.BoughtQuestion(
            appID: order.appID, userID: order.userID, product: product, item: offer.item)
        guard let bought = try await ledger.run(Statements.boughtUnits, question).first else { return }
        for (code, period, limit, count) in [
            (.limitDay, "a day", limits.day, bought.day), (.limitMonth, "a month", limits.month, bought.month),
            (.limitEver, "ever", limits.ever, bought.ever),
        ] as [(Problem.Code, String, Int?, Int)] {
            guard let limit, count + order.quantity > limit else { continue }
            if try await ledger.run(Statements.findOrders, [order]).first != nil { return }
            throw Problem.conflict(
                code, "one user may buy \(limit) of it \(period)", field: "item", limit: .userItems)
        }
    }

    private func get(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let wait = try WaitParameter(request).duration
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)),
            var view = try await ledger.order(id)
        else { throw Problem.notFound }
        guard
            try await caller.mayRead(
                appID: view.appID, userID: view.userID, configuration.current.userKeys, ledger)
        else { throw Problem.notYours }
        if !view.isOver, wait > .zero {
            view =
                await longPoll.latest(id, of: view.userID, upTo: wait, isOver: { $0.isOver }) {
                    try await ledger.order(id)
                } ?? view
        }
        return Response(json: try await shown([view], to: caller, of: view.appID)[0].json())
    }

    /// The orders as this caller may see them: a merged guest's token reads nothing of the account's receipts, orders
    /// and purchases.
    private func shown(_ views: [OrderView], to caller: Caller, of appID: String) async throws -> [OrderView] {
        guard let userID = caller.userID, views.contains(where: { $0 != $0.shown(to: [$0.userID]) }) else {
            return views
        }
        let key = configuration.current.userKeys?.key(of: userID, app: appID) ?? userID
        let ids = [key] + (try await ledger.run(Statements.idsMergedInto, UserName(appID: appID, key: key)))
        return views.map { $0.shown(to: ids) }
    }

    /// Answers a page of a user's orders, the newest first, for a client that forgot their ids. The page is full if more
    /// orders follow it.
    private func search(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let configuration = configuration.current
        let appID = try caller.app(request.parameter("appId"), of: configuration.appIDs)
        guard let userID = try caller.user(request.parameter("userId")) else {
            throw Problem.incomplete(.noUser, "must be there", field: "userId")
        }
        // What was placed under a placeholder by an earlier version is nobody's to read but the backend's.
        guard !configuration.placeholders.contains(caller.userID) else { throw Problem.userPlaceholder("userId") }
        let productID = request.parameter("productId")
        for (name, text) in [("userId", userID), ("productId", productID ?? "")] {
            guard text.utf8.count <= IntakeFields.userBytesMax, !text.utf8.contains(0) else {
                throw Problem.badParameter(name, "a text of at most \(IntakeFields.userBytesMax) bytes")
            }
        }
        let state = try request.parameter("state").map { text throws(Problem) in
            // Before an order's grant became its binding, `bound` and `granted` were two states; `bound` is still
            // accepted.
            guard let state = text == "bound" ? .granted : OrderView.State(rawValue: text) else {
                let states = OrderView.State.allCases.map(\.rawValue).joined(separator: ", ")
                throw .badParameter("state", "one of \(states)")
            }
            return state
        }
        let count = try request.limit(Self.searchLimitDefault, max: Self.searchLimitMax)
        let before = try request.cursor() ?? .newest
        let user = UserName(appID: appID, key: configuration.userKeys?.key(of: userID, app: appID) ?? userID)
        let orders = try await lists.read(of: userID, context.channel) { database throws(PostgresError) in
            let ids = try await caller.idsRead(of: user, database)
            var search = Statements.OrderSearch(
                appID: appID, userIDs: ids, productID: productID, state: state, before: before, limit: count + 1)
            var orders: [OrderView] = []
            while true {
                let page = try await database.run(Statements.searchOrders, search)
                // For the user's own token an order may be in another state than for a service key.
                orders += (caller.userID == nil ? page : page.map { $0.shown(to: ids) })
                    .filter { state == nil || $0.state == state }
                guard orders.count <= count, page.count == search.limit, let last = page.last else { return orders }
                search.before = last.place
            }
        }
        var members: [JSONValue.Member] = [.init("orders", .array(orders.prefix(count).map { $0.json() }))]
        if orders.count > count { members.append(.init("next", .string(orders[count - 1].place.text))) }
        return Response(json: .object(members))
    }
}

extension OrderView {
    /// Whether nothing more is waited for.
    fileprivate var isOver: Bool { transactionID != nil || ending != nil }
}

extension Problem {
    static func tooManyOrders(retryAfterSeconds: Int) -> Problem {
        Problem(
            .tooManyRequests, .tooManyOrders,
            "this user placed \(Statements.ordersPerUserMax) orders within a day",
            limit: .userOrders, headers: [.retryAfter: String(retryAfterSeconds)])
    }
}
