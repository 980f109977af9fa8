! The equations of Lorenz (1996): large variables x, each with small variables y that a coarse model does not resolve.
! The constants are those of Wilks (2005).
module lorenz96
  use, intrinsic :: iso_c_binding, only: c_float
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  private
  public :: initial, read_arguments, stencils, step_closed, step_two_scales, subgrid

  integer, parameter, public :: n_large = 8, n_small = 32, n_stencil = 5
  real(real64), parameter, public :: subgrid_scale = 10, input_scale = 0.1_real64  ! the network's numbers are about 1
  real(real64), parameter :: forcing = 20, b = 10, c = 10, coupling = 1

contains

  ! The arguments of a program: the folder of the parameters, the members of the ensemble on all ranks, and the steps.
  subroutine read_arguments(folder, members, steps)
    character(:), allocatable, intent(out) :: folder
    integer, intent(out) :: members, steps
    character(1024) :: words(3)
    integer :: i
    if (command_argument_count() /= 3) error stop "arguments: FOLDER MEMBERS STEPS"
    do i = 1, 3
      call get_command_argument(i, words(i))
    end do
    folder = trim(words(1))
    read (words(2), *) members
    read (words(3), *) steps
  end subroutine read_arguments

  ! The large variables of a member of the ensemble; members are counted from 1 over all ranks.
  pure function initial(member) result(x)
    integer, intent(in) :: member
    real(real64) :: x(n_large)
    integer :: k
    x = [(8 + 2*sin(1.7_real64*k + 0.9_real64*member), k=1, n_large)]
  end function initial

  ! What the small variables add to the tendencies of the large ones.
  pure function subgrid(y) result(u)
    real(real64), intent(in) :: y(n_small, n_large)
    real(real64) :: u(n_large)
    u = -coupling*sum(y, dim=1)
  end function subgrid

  ! The inputs of the network: each large variable with its two neighbours on both sides.
  subroutine stencils(x, columns)
    real(real64), intent(in) :: x(:, :)
    real(c_float), intent(out) :: columns(n_stencil, n_large, size(x, 2))
    integer :: member, k, i
    !$omp parallel do private(k, i)
    do member = 1, size(x, 2)
      do k = 1, n_large
        do i = 1, n_stencil
          columns(i, k, member) = real(input_scale*x(modulo(k + i - 4, n_large) + 1, member), c_float)
        end do
      end do
    end do
  end subroutine stencils

  ! A step of Runge and Kutta's method of order 4 of the large variables; the closure u is kept during the step.
  subroutine step_closed(x, u, dt)
    real(real64), intent(inout) :: x(:, :)
    real(c_float), intent(in) :: u(n_large, size(x, 2))
    real(real64), intent(in) :: dt
    real(real64), dimension(n_large) :: k1, k2, k3, k4, added
    integer :: member
    !$omp parallel do private(k1, k2, k3, k4, added)
    do member = 1, size(x, 2)
      added = subgrid_scale*u(:, member)
      k1 = large(x(:, member), added)
      k2 = large(x(:, member) + dt/2*k1, added)
      k3 = large(x(:, member) + dt/2*k2, added)
      k4 = large(x(:, member) + dt*k3, added)
      x(:, member) = x(:, member) + dt/6*(k1 + 2*k2 + 2*k3 + k4)
    end do
  end subroutine step_closed

  ! The same of both scales.
  subroutine step_two_scales(x, y, dt)
    real(real64), intent(inout) :: x(:, :), y(:, :, :)
    real(real64), intent(in) :: dt
    real(real64) :: dx(n_large, 4), dy(n_small, n_large, 4)
    real(real64), parameter :: ahead(2:4) = [0.5_real64, 0.5_real64, 1.0_real64]
    integer :: member, stage
    !$omp parallel do private(dx, dy, stage)
    do member = 1, size(x, 2)
      dx(:, 1) = large(x(:, member), subgrid(y(:, :, member)))
      dy(:, :, 1) = small(x(:, member), y(:, :, member))
      do stage = 2, 4
        associate (x_ahead => x(:, member) + ahead(stage)*dt*dx(:, stage - 1), &
                   y_ahead => y(:, :, member) + ahead(stage)*dt*dy(:, :, stage - 1))
          dx(:, stage) = large(x_ahead, subgrid(y_ahead))
          dy(:, :, stage) = small(x_ahead, y_ahead)
        end associate
      end do
      x(:, member) = x(:, member) + dt/6*(dx(:, 1) + 2*dx(:, 2) + 2*dx(:, 3) + dx(:, 4))
      y(:, :, member) = y(:, :, member) + dt/6*(dy(:, :, 1) + 2*dy(:, :, 2) + 2*dy(:, :, 3) + dy(:, :, 4))
    end do
  end subroutine step_two_scales

  pure function large(x, u) result(dx)
    real(real64), intent(in) :: x(n_large), u(n_large)
    real(real64) :: dx(n_large), ring(-1:n_large + 1)
    integer :: k
    ring = [x(n_large - 1), x(n_large), x, x(1)]
    do k = 1, n_large
      dx(k) = -ring(k - 1)*(ring(k - 2) - ring(k + 1)) - ring(k) + forcing + u(k)
    end do
  end function large

  pure function small(x, y) result(dy)
    real(real64), intent(in) :: x(n_large), y(n_small, n_large)
    real(real64) :: dy(n_small, n_large), ring(0:n_small*n_large + 2)
    integer :: k, j, at
    ring = [y(n_small, n_large), y, y(1, 1), y(2, 1)]
    do k = 1, n_large
      do j = 1, n_small
        at = (k - 1)*n_small + j
        dy(j, k) = -c*b*ring(at + 1)*(ring(at + 2) - ring(at - 1)) - c*ring(at) + coupling*x(k)
      end do
    end do
  end function small
end module lorenz96
