//! A template's syntax tree, rebuilt so that no operation of the engine meets a value without bounds.
//!
//! The engine's fuel bounds steps and bytes, but a list may hold itself (through a namespace) or one list a billion
//! times (`x = [x, x]`, forty times): showing, comparing or adding up such a value would never end. And a list may hold
//! a list that holds a list, or be a slice of a slice, a hundred thousand times: walking through it, or only letting go
//! of it, would take as many stack frames. So what makes a value out of others, and each operand of an operation that
//! walks through whole values, passes the filter BOUNDED, which measures it and turns what is computed on demand (a
//! slice) into a list; `~` becomes the filter CONCAT, which writes values as Python does; and what is stored in a
//! namespace passes STORED, which lets no namespace in. Filters are looked up apart from variables: a template cannot
//! redefine these, nor name them.

use minijinja::machinery::ast::*;

use crate::failure::{Failure, Outcome};

pub const BOUNDED: &str = "(bounded)";
pub const STORED: &str = "(stored)";
pub const CONCAT: &str = "(concat)";

/// Real templates nest below 40 deep, a long chain of `+` or `elif` included below 100. The compiler's work grows with
/// the square of the depth.
const MAX_DEPTH: usize = 400;

/// They look at a value's kind or its first layer only, and give a string, a number, a part of it or a plain list.
const SHALLOW_FILTERS: [&str; 12] =
    ["length", "count", "first", "last", "default", "d", "items", "list", "tojson", "string", CONCAT, BOUNDED];
const SHALLOW_TESTS: [&str; 20] = [
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "integer", "int",
    "float", "true", "false", "odd", "even", "divisibleby", "filter", "test", "safe",
];
/// Their answer is a string (or an error), which `+` then copes with.
const STRING_FILTERS: [&str; 11] =
    ["tojson", "string", "trim", "upper", "lower", "title", "capitalize", "replace", "join", "indent", CONCAT];
/// Methods of lists that compare their items.
const DEEP_METHODS: [&str; 2] = ["count", "index"];

pub fn harden<'s>(template: &Stmt<'s>) -> Outcome<Stmt<'s>> {
    Hardener { depth: 0 }.stmt(template)
}

struct Hardener {
    depth: usize,
}

fn filter<'s>(name: &'s str, expr: Expr<'s>, args: Vec<CallArg<'s>>) -> Expr<'s> {
    let span = expr.span();
    Expr::Filter(Spanned::new(Filter { name, expr: Some(expr), args }, span))
}

/// `expr`, measured when it runs. Constants are small, arithmetic gives numbers.
fn bounded<'s>(expr: Expr<'s>) -> Expr<'s> {
    match &expr {
        Expr::Const(_) | Expr::UnaryOp(_) | Expr::Compare(_) | Expr::Test(_) => expr,
        Expr::Filter(done) if done.name == BOUNDED => expr,
        _ if is_string(&expr) || is_const(&expr) => expr,
        _ => filter(BOUNDED, expr, vec![]),
    }
}

fn is_string(expr: &Expr) -> bool {
    match expr {
        Expr::Const(c) => c.value.as_str().is_some(),
        Expr::Filter(f) => STRING_FILTERS.contains(&f.name),
        Expr::BinOp(op) => matches!(op.op, BinOpKind::Add) && (is_string(&op.left) || is_string(&op.right)),
        _ => false,
    }
}

/// Comparing with a constant looks no deeper than the constant is.
fn is_const(expr: &Expr) -> bool {
    matches!(expr, Expr::Const(_)) || expr.as_const().is_some()
}

fn has_attribute(target: &Expr) -> bool {
    match target {
        Expr::GetAttr(_) => true,
        Expr::List(list) => list.items.iter().any(has_attribute),
        Expr::Tuple(tuple) => tuple.items.iter().any(has_attribute),
        _ => false,
    }
}

fn other_file<T>(stmt: &Spanned<T>) -> Failure {
    let line = stmt.span().start_line;
    Failure::corrupt(format!("include, import and extends name other files, a chat template has none (line {line})"))
}

macro_rules! spanned {
    ($kind:path, $old:expr, $node:expr) => {
        $kind(Spanned::new($node, $old.span()))
    };
}

impl Hardener {
    fn stmt<'s>(&mut self, stmt: &Stmt<'s>) -> Outcome<Stmt<'s>> {
        self.enter()?;
        let rebuilt = self.stmt_inside(stmt)?;
        self.depth -= 1;
        Ok(rebuilt)
    }

    fn expr<'s>(&mut self, expr: &Expr<'s>) -> Outcome<Expr<'s>> {
        self.enter()?;
        let rebuilt = self.expr_inside(expr)?;
        self.depth -= 1;
        Ok(rebuilt)
    }

    fn enter(&mut self) -> Outcome<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Failure::corrupt(format!("nested or chained deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }

    fn body<'s>(&mut self, body: &[Stmt<'s>]) -> Outcome<Vec<Stmt<'s>>> {
        body.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn exprs<'s>(&mut self, exprs: &[Expr<'s>]) -> Outcome<Vec<Expr<'s>>> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    /// What is assigned to: its lists and tuples are patterns, not values.
    fn target<'s>(&mut self, target: &Expr<'s>) -> Outcome<Expr<'s>> {
        self.enter()?;
        let rebuilt = match target {
            Expr::List(e) => spanned!(Expr::List, e, List { items: self.targets(&e.items)? }),
            Expr::Tuple(e) => spanned!(Expr::Tuple, e, Tuple { items: self.targets(&e.items)? }),
            other => self.expr_inside(other)?,
        };
        self.depth -= 1;
        Ok(rebuilt)
    }

    fn targets<'s>(&mut self, targets: &[Expr<'s>]) -> Outcome<Vec<Expr<'s>>> {
        targets.iter().map(|target| self.target(target)).collect()
    }

    fn optional<'s>(&mut self, expr: &Option<Expr<'s>>) -> Outcome<Option<Expr<'s>>> {
        expr.as_ref().map(|expr| self.expr(expr)).transpose()
    }

    fn args<'s>(&mut self, args: &[CallArg<'s>]) -> Outcome<Vec<CallArg<'s>>> {
        args.iter()
            .map(|arg| {
                Ok(match arg {
                    CallArg::Pos(e) => CallArg::Pos(bounded(self.expr(e)?)),
                    CallArg::Kwarg(name, e) => CallArg::Kwarg(name, bounded(self.expr(e)?)),
                    CallArg::PosSplat(e) => CallArg::PosSplat(bounded(self.expr(e)?)),
                    CallArg::KwargSplat(e) => CallArg::KwargSplat(bounded(self.expr(e)?)),
                })
            })
            .collect()
    }

    /// The value for an assignment to `target`.
    fn assigned<'s>(&mut self, target: &Expr<'s>, expr: &Expr<'s>) -> Outcome<Expr<'s>> {
        let expr = self.expr(expr)?;
        Ok(if has_attribute(target) { filter(STORED, expr, vec![]) } else { expr })
    }

    fn call<'s>(&mut self, call: &Spanned<Call<'s>>) -> Outcome<Spanned<Call<'s>>> {
        let called = match &call.expr {
            Expr::GetAttr(method) if DEEP_METHODS.contains(&method.name) => {
                let object = bounded(self.expr(&method.expr)?);
                spanned!(Expr::GetAttr, method, GetAttr { expr: object, name: method.name })
            }
            other => self.expr(other)?,
        };
        Ok(Spanned::new(Call { expr: called, args: self.args(&call.args)? }, call.span()))
    }

    fn macro_decl<'s>(&mut self, decl: &Spanned<Macro<'s>>) -> Outcome<Spanned<Macro<'s>>> {
        let node = Macro {
            name: decl.name,
            args: self.exprs(&decl.args)?,
            defaults: self.exprs(&decl.defaults)?,
            body: self.body(&decl.body)?,
        };
        Ok(Spanned::new(node, decl.span()))
    }

    fn stmt_inside<'s>(&mut self, stmt: &Stmt<'s>) -> Outcome<Stmt<'s>> {
        Ok(match stmt {
            Stmt::Template(s) => spanned!(Stmt::Template, s, Template { children: self.body(&s.children)? }),
            Stmt::EmitExpr(s) => spanned!(Stmt::EmitExpr, s, EmitExpr { expr: self.expr(&s.expr)? }),
            Stmt::EmitRaw(s) => spanned!(Stmt::EmitRaw, s, EmitRaw { raw: s.raw }),
            Stmt::ForLoop(s) => self.for_loop(s)?,
            Stmt::IfCond(s) => {
                let node = IfCond {
                    expr: self.expr(&s.expr)?,
                    true_body: self.body(&s.true_body)?,
                    false_body: self.body(&s.false_body)?,
                };
                spanned!(Stmt::IfCond, s, node)
            }
            Stmt::WithBlock(s) => {
                let mut assignments = Vec::with_capacity(s.assignments.len());
                for (target, expr) in &s.assignments {
                    assignments.push((self.target(target)?, self.assigned(target, expr)?));
                }
                spanned!(Stmt::WithBlock, s, WithBlock { assignments, body: self.body(&s.body)? })
            }
            Stmt::Set(s) => {
                let expr = self.assigned(&s.target, &s.expr)?;
                spanned!(Stmt::Set, s, Set { target: self.target(&s.target)?, expr })
            }
            Stmt::SetBlock(s) => {
                let node = SetBlock {
                    target: self.target(&s.target)?,
                    filter: self.optional(&s.filter)?,
                    body: self.body(&s.body)?,
                };
                spanned!(Stmt::SetBlock, s, node)
            }
            Stmt::AutoEscape(s) => {
                let node = AutoEscape { enabled: self.expr(&s.enabled)?, body: self.body(&s.body)? };
                spanned!(Stmt::AutoEscape, s, node)
            }
            Stmt::FilterBlock(s) => {
                let filter = self.expr(&s.filter)?;
                let node = FilterBlock { filter, filter_span: s.filter_span, body: self.body(&s.body)? };
                spanned!(Stmt::FilterBlock, s, node)
            }
            Stmt::Block(s) => {
                let node = Block { name: s.name, required: s.required, body: self.body(&s.body)? };
                spanned!(Stmt::Block, s, node)
            }
            Stmt::Macro(s) => Stmt::Macro(self.macro_decl(s)?),
            Stmt::CallBlock(s) => {
                let node = CallBlock {
                    call: self.call(&s.call)?,
                    call_expr_span: s.call_expr_span,
                    macro_decl: self.macro_decl(&s.macro_decl)?,
                };
                spanned!(Stmt::CallBlock, s, node)
            }
            Stmt::Continue(s) => spanned!(Stmt::Continue, s, Continue),
            Stmt::Break(s) => spanned!(Stmt::Break, s, Break),
            Stmt::Do(s) => spanned!(Stmt::Do, s, Do { call: self.call(&s.call)? }),
            Stmt::Import(s) => return Err(other_file(s)),
            Stmt::FromImport(s) => return Err(other_file(s)),
            Stmt::Extends(s) => return Err(other_file(s)),
            Stmt::Include(s) => return Err(other_file(s)),
        })
    }

    fn for_loop<'s>(&mut self, s: &Spanned<ForLoop<'s>>) -> Outcome<Stmt<'s>> {
        if has_attribute(&s.target) {
            return Err(Failure::corrupt("a for loop cannot assign to an attribute"));
        }
        let node = ForLoop {
            target: self.target(&s.target)?,
            iter: self.expr(&s.iter)?,
            filter_expr: self.optional(&s.filter_expr)?,
            recursive: s.recursive,
            body: self.body(&s.body)?,
            else_body: self.body(&s.else_body)?,
        };
        Ok(spanned!(Stmt::ForLoop, s, node))
    }

    fn expr_inside<'s>(&mut self, expr: &Expr<'s>) -> Outcome<Expr<'s>> {
        Ok(match expr {
            Expr::Var(e) => spanned!(Expr::Var, e, Var { id: e.id }),
            Expr::Const(e) => spanned!(Expr::Const, e, Const { value: e.value.clone() }),
            Expr::Slice(e) => {
                let node = Slice {
                    expr: self.expr(&e.expr)?,
                    start: self.optional(&e.start)?,
                    stop: self.optional(&e.stop)?,
                    step: self.optional(&e.step)?,
                };
                bounded(spanned!(Expr::Slice, e, node))
            }
            Expr::UnaryOp(e) => {
                let op = match e.op {
                    UnaryOpKind::Not => UnaryOpKind::Not,
                    UnaryOpKind::Neg => UnaryOpKind::Neg,
                };
                spanned!(Expr::UnaryOp, e, UnaryOp { op, expr: self.expr(&e.expr)? })
            }
            Expr::BinOp(e) => self.bin_op(e)?,
            Expr::Compare(e) => self.compare(e)?,
            Expr::IfExpr(e) => {
                let node = IfExpr {
                    test_expr: self.expr(&e.test_expr)?,
                    true_expr: self.expr(&e.true_expr)?,
                    false_expr: self.optional(&e.false_expr)?,
                };
                spanned!(Expr::IfExpr, e, node)
            }
            Expr::Filter(e) => {
                let deep = !SHALLOW_FILTERS.contains(&e.name);
                let inner = self.optional(&e.expr)?.map(|inner| if deep { bounded(inner) } else { inner });
                let node = Filter { name: e.name, expr: inner, args: self.args(&e.args)? };
                let answer = spanned!(Expr::Filter, e, node);
                if deep {
                    bounded(answer)
                } else {
                    answer
                }
            }
            Expr::Test(e) => {
                let shallow = SHALLOW_TESTS.contains(&e.name) || matches!(&e.args[..], [CallArg::Pos(a)] if is_const(a));
                let inner = self.expr(&e.expr)?;
                let inner = if shallow { inner } else { bounded(inner) };
                spanned!(Expr::Test, e, Test { name: e.name, expr: inner, args: self.args(&e.args)? })
            }
            Expr::GetAttr(e) => spanned!(Expr::GetAttr, e, GetAttr { expr: self.expr(&e.expr)?, name: e.name }),
            Expr::GetItem(e) => {
                let node = GetItem {
                    expr: self.expr(&e.expr)?,
                    subscript_expr: bounded(self.expr(&e.subscript_expr)?),
                };
                spanned!(Expr::GetItem, e, node)
            }
            Expr::Call(e) => Expr::Call(self.call(e)?),
            Expr::List(e) => bounded(spanned!(Expr::List, e, List { items: self.exprs(&e.items)? })),
            Expr::Tuple(e) => bounded(spanned!(Expr::Tuple, e, Tuple { items: self.exprs(&e.items)? })),
            Expr::Map(e) => {
                let keys = self.exprs(&e.keys)?.into_iter().map(bounded).collect();
                bounded(spanned!(Expr::Map, e, Map { keys, values: self.exprs(&e.values)? }))
            }
        })
    }

    fn bin_op<'s>(&mut self, e: &Spanned<BinOp<'s>>) -> Outcome<Expr<'s>> {
        let (left, right) = (self.expr(&e.left)?, self.expr(&e.right)?);
        let (left, right) = match e.op {
            BinOpKind::Concat => return Ok(filter(CONCAT, left, vec![CallArg::Pos(right)])),
            BinOpKind::Add if is_string(&left) || is_string(&right) => (left, right),
            BinOpKind::ScAnd | BinOpKind::ScOr => (left, right),
            BinOpKind::Eq | BinOpKind::Ne | BinOpKind::In if is_const(&left) || is_const(&right) => (left, right),
            _ => (bounded(left), bounded(right)),
        };
        let makes_lists = matches!(e.op, BinOpKind::Add | BinOpKind::Mul);
        let answer = spanned!(Expr::BinOp, e, BinOp { op: e.op, left, right });
        Ok(if makes_lists { bounded(answer) } else { answer })
    }

    fn compare<'s>(&mut self, e: &Spanned<Compare<'s>>) -> Outcome<Expr<'s>> {
        let shallow = matches!(&e.ops[..], [only] if is_const(&e.expr) || is_const(&only.expr));
        let maybe = |expr| if shallow { expr } else { bounded(expr) };
        let first = maybe(self.expr(&e.expr)?);
        let mut ops = Vec::with_capacity(e.ops.len());
        for op in &e.ops {
            ops.push(CompareOp { op: op.op, expr: maybe(self.expr(&op.expr)?) });
        }
        Ok(spanned!(Expr::Compare, e, Compare { expr: first, ops }))
    }
}
