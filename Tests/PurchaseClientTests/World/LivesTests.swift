import Foundation
import TestRandom
import Testing

@testable import PurchaseClient

/// Whole lives of a device, in a world that fails wherever it can.
@Suite struct LivesTests {
    /// Goal: what Apple sold is what was granted, to the right account, and no transaction is finished before
    /// `safeToFinish`, whatever happens. Method: random lives of taps, logins, payments that lie, posts that get lost,
    /// stores that fail, and kills between any two actions; then the world is calm and each user comes back.
    /// `MAKEGOOD_LIVES` says how many lives.
    @Test func nothingIsLost() {
        let lives = ProcessInfo.processInfo.environment["MAKEGOOD_LIVES"].flatMap { Int($0) } ?? 500
        var random = SeededRandom(announcing: "LivesTests")
        var sales = 0
        var kinds: Set<String> = []
        for _ in 0..<lives {
            let seed = random.next()
            var life = Life(seed: seed, isStoreKit1: seed.isMultiple(of: 2))
            for _ in 0..<300 { life.happen() }
            life.comeToRest()
            let faults = life.faults()
            #expect(faults.isEmpty, "seed \(seed)")
            if !faults.isEmpty { return }
            sales += life.apple.sales.count
            for sale in life.apple.sales.values { kinds.insert("\(sale.token == nil) \(sale.isDenied)") }
        }
        #expect(sales > lives && kinds.count == 4, "the world sells, with tokens and without, and lies")
        print("LivesTests: \(lives) lives, \(sales) sales")
    }

    /// Goal: a kill after any action of a purchase loses nothing (S4-15, S1-22).
    /// Method: each kind of payment is played in a world that works, and the app is killed after the first action, the
    /// second, and so on, and again at a later action of the next start.
    @Test(arguments: [false, true], [false, true])
    func killedAtEveryStep(isStoreKit1: Bool, changesUser: Bool) {
        var killed = 0
        for second in 0..<6 {
            for first in 0..<200 {
                var life = Life(seed: 1, isStoreKit1: isStoreKit1)
                life.isCalm = true
                life.send(.loggedIn(.ann))
                life.settle()
                life.tap("coins")
                let begin = life.actionsDone
                func run(_ life: inout Life, actions: Int) {
                    while !life.isQuiet, life.actionsDone < actions {
                        if life.queue.isEmpty { life.land(0) } else { life.act() }
                    }
                }
                run(&life, actions: begin + first)
                let isOver = life.isQuiet
                life.isCalm = false
                life.kill()
                life.isCalm = true
                if changesUser { life.send(.loggedIn(.bob)) }
                run(&life, actions: life.actionsDone + second)
                life.kill()
                life.comeToRest()
                #expect(life.faults().isEmpty, "killed after \(first) and \(second) actions")
                if isOver { break }
                killed += 1
            }
        }
        #expect(killed > 60, "\(killed)")
    }
}
