create table books (title text primary key, author text not null, shelf text not null, copies integer not null);
create table loans (member text not null, title text not null references books(title));
insert into books values
  ('Emma', 'Jane Austen', 'B3', 41), ('Persuasion', 'Jane Austen', 'B4', 27), ('Middlemarch', 'George Eliot', 'C1', 63),
  ('Villette', 'Charlotte Brontë', 'A7', 38), ('Dracula', 'Bram Stoker', 'D2', 52), ('Ulysses', 'James Joyce', 'E5', 19),
  ('Dubliners', 'James Joyce', 'E6', 74), ('Kim', 'Rudyard Kipling', 'F1', 85);
