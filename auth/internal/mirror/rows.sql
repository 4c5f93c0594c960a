--- writer mirror_put_{row}(n {H}.{N}mirror_{row}) returns boolean
declare
    o {S}.{there};
begin
    select * from {S}.{there} t where t.id = n.id into o;
    if not found then
        insert into {S}.{there} ({names}, updated_at)
        select {values}, n.updated_at from {S}.users u where u.id = n.user_id;
        return found;
    end if;
    if {differ} then
        {update}
    end if;
    return true;
end
--- writer mirror_prune_{there}(owners uuid[], kept uuid[]) returns void
begin
    delete from {S}.{there} t where t.user_id = any(owners) and t.id <> all(kept) and {pruned};
end
--- shared mirror_{there}() returns setof {H}.{N}mirror_{row}
begin
    return query {image} where {mirrored};
end
--- reader mirror_{row}(row_id uuid, owner uuid) returns void
declare
    n {H}.{N}mirror_{row};
begin
    {image} where u.id = row_id and {mirrored} into n;
    if found then
        if not {H}.{N}mirror_put_{row}(n) then
            perform from {H}.{N}users u where u.id = owner for no key update;
            perform {H}.{N}mirror_user(owner);
            perform {H}.{N}mirror_put_{row}(n);
        end if;
    elsif exists (select from {H}.{N}users u where u.id = owner) then
        perform {H}.{N}mirror_drop('{there}', row_id);
    end if;
    perform {H}.{N}mirror_settle();
end
--- reader mirror_to_{row}() returns trigger
begin
    perform {H}.{N}mirror_{row}(case when tg_op = 'DELETE' then old.id else new.id end,
        case when tg_op = 'DELETE' then old.user_id else new.user_id end);
    return null;
end
--- keeper mirror_from_{there}() returns trigger
declare
    n {H}.{N}mirror_{row};
begin
    if tg_op = 'TRUNCATE' then
        perform {H}.{N}mirror_refuse('{there}', 'rows are', 'Use POST /admin/users.');
    elsif tg_op = 'DELETE' then
        delete from {H}.{N}{here} where id = old.id;
        return null;
    end if;
    {image} where u.id = new.id and {mirrored} into n;
    if not found then
        if tg_op = 'UPDATE' and {unchanged} then
            return null; -- a row that was left out
        end if;
        if exists (select from {H}.{N}users u where u.id = new.user_id
            or tg_op = 'UPDATE' and u.id = old.user_id) then
            perform {H}.{N}mirror_refuse('{there}', 'rows are', 'Use POST /admin/users.');
        end if;
        return null;
    end if;
    {refusals}
    return null;
end
