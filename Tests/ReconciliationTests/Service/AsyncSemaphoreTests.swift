import Service
import Testing

/// Goal: what is inside never weighs more than it may. Method: tasks that are sent away instead of waiting.
@Suite struct AsyncSemaphoreTests {
    @Test func weights() async {
        let semaphore = AsyncSemaphore(3, waitersMax: 0)
        #expect(await semaphore.enter(2))
        #expect(await !semaphore.enter(2))
        #expect(await semaphore.enter())
        #expect(await !semaphore.enter())
        semaphore.leave(2)
        #expect(await semaphore.enter(2))
        #expect(await !semaphore.enter())
    }

    @Test("A light task does not pass a heavy one that waits, and both come in when there is room")
    func order() async {
        let semaphore = AsyncSemaphore(2, waitersMax: 1)
        await semaphore.enter()
        await withTaskGroup(of: Bool.self) { group in
            // Whoever comes first waits, because there is no room for its weight; the other one is sent away.
            for _ in 0..<2 { group.addTask { await semaphore.enter(2) } }
            let sentAway = await group.next()
            #expect(sentAway == false)
            let isIn = await semaphore.enter()
            #expect(!isIn)
            semaphore.leave()
            let waited = await group.next()
            #expect(waited == true)
        }
        semaphore.leave(2)
        #expect(await semaphore.enter(2))
    }
}
