import HTTPTypes
import Hummingbird
import NIOCore

/// The records of the store: `/control/ledger`, `/control/calls`, `/control/filings`.
extension ControlRoutes {
    func addReading(to router: Router<SimulatorContext>) {
        router.get("/control/ledger") { request, _ in
            try await answer { () throws(ControlError) in
                ledger(from: try number("skip", of: request) ?? 0)
            }
        }
        router.get("/control/filings") { request, _ in
            try await answer { () throws(ControlError) -> Response in
                let after = try number("after", of: request) ?? 0
                let limit = try number("limit", of: request) ?? LedgerState.filingsMax
                let filings = store.ledger.filings(after: after, limit: limit)
                return json(capacity: 64 + filings.count * 256) { body in
                    body.field(
                        "filings",
                        array: { array in
                            for (number, filing) in filings {
                                array.element { element in
                                    element.field("number", number)
                                    filing.write(&element)
                                }
                            }
                        })
                }
            }
        }
        router.get("/control/calls") { request, _ in
            try await answer { () throws(ControlError) -> Response in
                let after = try number("after", of: request) ?? 0
                let limit = try number("limit", of: request) ?? CallLog.callsMax
                let calls = store.calls.calls(after: after, limit: limit)
                let open = store.calls.open
                return json(capacity: 64 + calls.count * 256) { body in
                    body.field("open", open.now)
                    body.field("openMax", open.most)
                    body.field(
                        "calls",
                        array: { array in
                            for call in calls { array.element { call.write(&$0) } }
                        })
                }
            }
        }
    }

    /// The whole ledger, written piece by piece: a million purchases need no body of 300 MB in memory.
    private func ledger(from skip: Int) -> Response {
        let counts = store.calls.counts
        let forgeries = store.ledger.forgeries
        let end = store.ledger.count
        let body = ResponseBody { writer in
            try await writer.write(ByteBuffer(string: #"{"purchases":["#))
            var position = skip
            while position < end {
                let chunk = store.ledger.purchases(from: position, limit: min(Self.ledgerChunk, end - position))
                let separator: [UInt8] = position == skip ? [] : [UInt8(ascii: ",")]
                let objects = chunk.map { purchase in JSONWriter.object { write(purchase, &$0) } }
                let joined = objects.joined(separator: [UInt8(ascii: ",")])
                try await writer.write(ByteBuffer(bytes: separator + joined))
                position += chunk.count
            }
            let rest = JSONWriter.object { body in
                body.field(
                    "forgeries",
                    array: { array in
                        for forgery in forgeries { array.element { write(forgery, &$0) } }
                    })
                body.field(
                    "calls",
                    object: { object in
                        for service in SimulatedService.allCases {
                            object.field(service.rawValue, counts[service] ?? 0)
                        }
                    })
            }
            // The rest's own opening brace becomes the comma after the list.
            try await writer.write(ByteBuffer(bytes: Array("],".utf8) + rest.dropFirst()))
            try await writer.finish(nil)
        }
        return Response(status: .ok, headers: [.contentType: "application/json"], body: body)
    }

    private func write(_ forgery: Forgery, _ json: inout JSONWriter) {
        json.field("transactionId", forgery.transactionId)
        json.field("kind", forgery.kind.rawValue)
        json.field("app", forgery.app)
        json.field("productId", forgery.productId)
        json.field("valid", false)
    }
}
