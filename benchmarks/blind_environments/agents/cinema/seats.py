"""The seat plan of a cinema."""

PLAN = {"A": 6, "B": 8, "C": 8, "D": 10}
TAKEN = {"A": [1, 2], "B": [3, 4, 5], "C": [1, 7, 8], "D": [2, 3]}


class SeatPlan:
    def open(self, guest):
        self.guest = guest
        self.sold = {row: set(seats) for row, seats in TAKEN.items()}
        self.bought = []

    def free(self, row):
        if row not in PLAN:
            raise ValueError(f"there is no row {row}")
        return [seat for seat in range(1, PLAN[row] + 1) if seat not in self.sold[row]]

    def buy(self, row, seat):
        if seat not in self.free(row):
            raise ValueError(f"seat {row}-{seat} is not free")
        self.sold[row].add(seat)
        code = f"{row}-{seat}/{sum(map(ord, self.guest)) % 997}"
        self.bought.append({"guest": self.guest, "row": row, "seat": seat, "code": code})
        return {"code": code}


plan = SeatPlan()
