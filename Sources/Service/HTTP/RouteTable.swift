import Encoding
package import HTTPTypes
package import Hummingbird

/// What answers one method of a path, with the query parameters that it takes.
package struct Endpoint: Sendable {
    package typealias Handler = @Sendable (Request, HTTPContext) async throws -> Response

    /// The names of the query parameters.
    package let parameters: [String]
    /// Whether the handler stores purchases: no paid purchase is refused for its address, so the handler passes over
    /// query parameters that it cannot use.
    package let storesPurchases: Bool
    private let handler: Handler

    package init(_ parameters: String..., storesPurchases: Bool = false, handler: @escaping Handler) {
        self.parameters = parameters
        self.storesPurchases = storesPurchases
        self.handler = handler
    }

    /// - Throws: 400 `bad_parameter` for a query parameter that is not among these, or stands twice; what the handler
    ///   throws.
    func answer(_ request: Request, _ context: HTTPContext) async throws -> Response {
        if !storesPurchases { try check(request) }
        return try await handler(request, context)
    }

    /// A parameter that nobody reads would be a filter that does not filter. Of a parameter that stands twice, a proxy
    /// that read the address before may have taken the other value.
    private func check(_ request: Request) throws(Problem) {
        var seen: Set<Substring> = []
        for (name, value) in request.uri.queryParameters where !(name.isEmpty && value.isEmpty) {
            guard parameters.contains(where: { $0.isSameText(as: String(name)) }) else {
                throw .unknownParameter(String(name), known: parameters)
            }
            guard seen.insert(name).inserted else { throw .badParameter(String(name), "there once") }
        }
    }
}

/// Where routes are entered: a router, or a list that is compared with deploy/openapi.yaml.
package protocol RouteTable {
    /// Adds a path with every method that it serves.
    func serve(_ path: RouterPath, _ endpoints: [HTTPRequest.Method: Endpoint])
}

extension Router: RouteTable where Context == HTTPContext {
    /// Adds a path. Other methods than these are answered 405 with `Allow`, never 404.
    package func serve(_ path: RouterPath, _ endpoints: [HTTPRequest.Method: Endpoint]) {
        let served = Array(endpoints.keys) + (endpoints[.get] == nil ? [] : [HTTPRequest.Method.head])
        for (method, endpoint) in endpoints { on(path, method: method) { try await endpoint.answer($0, $1) } }
        let common: [HTTPRequest.Method] = [.get, .head, .post, .put, .patch, .delete, .options, .trace]
        for method in common where !served.contains(method) {
            on(path, method: method) { _, _ -> Response in throw Problem.methodNotAllowed(served) }
        }
    }
}
