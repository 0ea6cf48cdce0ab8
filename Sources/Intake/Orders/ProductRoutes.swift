import Encoding
import Foundation
import Hummingbird
package import Ledger
import Purchases
package import Service
package import Settings

/// `GET /v1/products?promotion=NAME`: the items that the app's shop shows now, with their store products (S3-6).
package struct ProductRoutes: Sendable {
    private let configuration: ConfigurationHolder
    private let catalogues: CatalogueRefresher
    private let authenticator: Authenticator

    package init(configuration: ConfigurationHolder, catalogues: CatalogueRefresher, authenticator: Authenticator) {
        self.configuration = configuration
        self.catalogues = catalogues
        self.authenticator = authenticator
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/products", [.get: Endpoint("appId", "promotion") { request, _ in try await get(request) }])
    }

    private func get(_ request: Request) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let configuration = configuration.current
        let appID = try caller.app(request.parameter("appId"), of: configuration.appIDs)
        let promotion = request.parameter("promotion")
        guard promotion?.utf8.count ?? 0 <= IntakeFields.itemBytesMax else {
            throw Problem.badParameter("promotion", "a text of at most \(IntakeFields.itemBytesMax) bytes")
        }
        if let promotion, !caller.mayOrder(promotion: promotion) { throw Problem.promotionNotAllowed }
        guard let app = configuration.apps[appID] else { throw Problem.appNotAllowed }
        let catalogue = try await catalogues.catalogue(of: app)
        let now = Date()
        var products: [JSONValue] = []
        for product in catalogue.products.values.sorted(by: { $0.id < $1.id }) {
            for item in product.items.values.sorted(by: { $0.id < $1.id }) {
                // A named promotion comes before the version for everyone; other promotions are not shown.
                let named = promotion.flatMap { item.version(promotion: $0, at: now) }
                guard let version = named ?? item.version(promotion: nil, at: now) else { continue }
                products.append(Self.json(product, item, version))
            }
        }
        return Response(json: .object([.init("products", .array(products))]))
    }

    private static func json(
        _ product: Catalogue.Product, _ item: Catalogue.Item, _ version: Catalogue.Version
    ) -> JSONValue {
        var members: [JSONValue.Member] = [
            .init("productId", .string(product.id)), .init("type", .string(product.kind.settingName)),
            .init("item", .string(item.id)), .init("isDefault", .bool(product.defaultItem == item.id)),
        ]
        members += product.terms.members
        if let promotion = version.promotion { members.append(.init("promotion", .string(promotion))) }
        members.append(.init("goods", .goods(version.goods)))
        if !version.bonuses.isEmpty { members.append(.init("bonuses", .bonuses(version.bonuses))) }
        if let price = version.price {
            members.append(.init("priceMilliunits", .integer(price.milliunits)))
            members.append(.init("currency", .string(price.currency)))
        }
        if let until = version.until { members.append(.init("until", .string(until.rfc3339))) }
        if !item.limits.areNone { members.append(.init("limits", .limits(item.limits))) }
        return .object(members)
    }
}
