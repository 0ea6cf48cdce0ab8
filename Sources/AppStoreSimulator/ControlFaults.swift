import Hummingbird

/// The fault script: `/control/faults`.
extension ControlRoutes {
    func addFaults(to router: Router<SimulatorContext>) {
        router.post("/control/faults") { request, _ in
            try await answer(request) { (fault: FaultRequest) async throws(ControlError) in
                let id = try store.faults.add(fault)
                return json(.created) { $0.field("id", id) }
            }
        }
        router.get("/control/faults") { _, _ in
            json { body in
                body.field(
                    "faults",
                    array: { array in
                        for rule in store.faults.rules { array.element { write(rule, &$0) } }
                    })
            }
        }
        router.delete("/control/faults") { _, _ in
            let removed = store.faults.removeAll()
            return json { $0.field("removed", removed) }
        }
        router.delete("/control/faults/{id}") { _, context in
            try await answer { () throws(ControlError) in
                guard let id = context.parameters.get("id", as: Int.self), store.faults.remove(id) else {
                    throw ControlError(status: 404, field: "id", "no such fault")
                }
                return json { $0.field("removed", 1) }
            }
        }
    }

    private func write(_ rule: FaultRules<FaultRequest>.Rule, _ json: inout JSONWriter) {
        json.field("id", rule.id)
        json.field("endpoint", rule.request.endpoint.rawValue)
        json.field("kind", rule.request.kind.rawValue)
        json.field("environment", ifPresent: rule.request.environment?.rawValue)
        json.field("count", ifPresent: rule.request.count)
        json.field("remaining", ifPresent: rule.remaining)
        if let percent = rule.request.percent { json.field("percent", percent) }
        json.field("fired", rule.fired)
    }
}
