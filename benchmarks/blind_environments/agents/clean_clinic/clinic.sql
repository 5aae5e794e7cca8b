create table doctors (name text primary key, field text not null, room text not null);
create table slots (doctor text not null references doctors(name), day text not null, start text not null, patient text);
insert into doctors values ('Dr Abel', 'skin', 'P14'), ('Dr Okoro', 'eyes', 'P27'), ('Dr Yilmaz', 'teeth', 'P33');
insert into slots (doctor, day, start) values
  ('Dr Abel', 'Monday', '08:40'), ('Dr Abel', 'Tuesday', '13:25'), ('Dr Abel', 'Thursday', '10:05'),
  ('Dr Okoro', 'Monday', '09:55'), ('Dr Okoro', 'Wednesday', '15:10'), ('Dr Okoro', 'Friday', '11:35'),
  ('Dr Yilmaz', 'Tuesday', '07:50'), ('Dr Yilmaz', 'Thursday', '16:20'), ('Dr Yilmaz', 'Friday', '12:15');
