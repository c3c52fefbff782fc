"""What drafters share: the contract, options, tables, trees and networks."""
