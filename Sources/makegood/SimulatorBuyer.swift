import AsyncHTTPClient
import Commands
import Foundation
import NIOCore
import NIOHTTP1

/// A buyer at the simulator: buys a batch of purchases with one call.
struct SimulatorBuyer: Sendable {
    private static let timeout = TimeAmount.seconds(60)
    /// The limit on an answer's bytes: 1,000 tokens take about 5 MB.
    private static let answerBytesMax = 64 << 20

    let http: HTTPClient
    let address: LoadAddress
    let bundleId: String
    let product: String
    let environment: String

    private struct Order: Encodable {
        let app: String
        let productId: String
        let environment: String
        let count: Int
        let receipts = false
    }

    private struct Sales: Decodable {
        struct Sale: Decodable {
            let signedTransaction: String
        }
        let purchases: [Sale]
    }

    func buy(_ count: Int) async throws -> [ByteBuffer] {
        var request = HTTPClientRequest(url: "\(address.base)/control/purchases")
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        let order = Order(app: bundleId, productId: product, environment: environment, count: count)
        request.body = .bytes(ByteBuffer(bytes: try JSONEncoder().encode(order)))
        let response = try await http.execute(request, timeout: Self.timeout)
        let body = Data(try await response.body.collect(upTo: Self.answerBytesMax).readableBytesView)
        guard response.status == .created, let sales = try? JSONDecoder().decode(Sales.self, from: body) else {
            let said = String(decoding: body.prefix(200), as: UTF8.self)
            throw UnusableInput("the simulator answered \(response.status.code): \(said)")
        }
        return sales.purchases.map { ByteBuffer(string: $0.signedTransaction) }
    }
}
