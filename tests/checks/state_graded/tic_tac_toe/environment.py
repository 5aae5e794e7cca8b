"""Tic-tac-toe against a player who takes the first free cell of a list. The game ends the episode; there are many ways to win."""

import random
from itertools import product

from sparring.environments import Environment, tool, tool_call
from sparring.rewards import Component, outcome_with_shaping
from sparring.types import Task

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def winner(board):
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None


class TicTacToe(Environment):
    def reset(self, task):
        self.board = list(task.fields["board"])
        self.opponent = task.fields["opponent"]

    @tool
    def place(self, cell: int) -> str:
        """Put an X on a free cell, 0 to 8."""
        if not 0 <= cell <= 8 or self.board[cell] != ".":
            raise ValueError(f"cell {cell} is not free")
        self.board[cell] = "X"
        if winner(self.board) is None:
            reply = next((cell for cell in self.opponent if self.board[cell] == "."), None)
            if reply is not None:
                self.board[reply] = "O"
        return "".join(self.board)

    @property
    def is_done(self):
        return winner(self.board) is not None or "." not in self.board

    def final_state(self):
        return {"board": "".join(self.board), "winner": winner(self.board)}

    def demonstrate(self, task):
        return [tool_call("place", cell=cell) for cell in task.fields["plan"]]


def plan(board, opponent):
    """The first of the shortest ways to win; None when there is none."""
    free = [cell for cell in range(9) if board[cell] == "."]
    for length in (1, 2, 3):
        for cells in product(free, repeat=length):
            now, last = list(board), None
            for cell in cells:
                if now[cell] != "." or last is not None:
                    break
                now[cell] = "X"
                last = winner(now)
                reply = next((one for one in opponent if now[one] == "."), None)
                if last is None and reply is not None:
                    now[reply] = "O"
                    last = winner(now)
            else:
                if last == "X":
                    return list(cells)
    return None


def tasks(split, num):
    rng, found = random.Random(split), []
    while len(found) < num:
        board = ["."] * 9
        board[rng.randrange(9)] = "O"
        opponent = rng.sample(range(9), 9)
        cells = plan(board, opponent)
        if cells is not None:
            name, text = f"{split}-{len(found)}", "".join(board)
            message = {"role": "user", "content": f"Game {name}. You are X, place three in a row. Board: {text}"}
            found.append(
                Task(id=name, messages=(message,), fields={"board": text, "opponent": opponent, "plan": cells})
            )
    return found


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def won(trajectory):
    return float(trajectory.final_state["winner"] == "X")


reward = outcome_with_shaping(won, Component(name="brevity", measure=lambda one: 1 - len(one.turns) / 9, weight=0.05))


def scorer(trajectory):
    board = trajectory.final_state["board"]
    return float(any(board[a] + board[b] + board[c] == "XXX" for a, b, c in LINES))
